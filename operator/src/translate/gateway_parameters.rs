//! The GatewayParameters that a Gateway goes by: its own ones and those of its class.

use vestibule_model::gateway::Gateway;
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_model::parameters::GatewayParameters;
use vestibule_model::reference::Reference;

use super::Translator;

impl Translator {
    /// The parameters of a Gateway, and then those of its class. `None` stands for parameters that are not known, because
    /// they do not exist or cannot be decoded. Of parameters with a finding, the readable parts count.
    pub(super) fn readable_parameters<'a>(
        &'a self,
        gateway: &'a Gateway,
    ) -> impl Iterator<Item = Option<&'a GatewayParameters>> {
        let of_class = self.merge.class(&gateway.class);
        let of_class = of_class.and_then(|class| class.parameters.as_ref());
        let references = gateway.infrastructure.parameters.iter().chain(of_class);
        references.map(move |reference| self.readable_parameters_at(reference))
    }

    fn readable_parameters_at(&self, reference: &Reference) -> Option<&GatewayParameters> {
        if !reference.is(Kind::GatewayParameters) {
            return None;
        }
        match self.get(Kind::GatewayParameters, &reference.target)? {
            Object::GatewayParameters(parameters) => Some(parameters),
            _ => None,
        }
    }
}
