//! Classes and Gateways with GatewayParameters, and the settings of a Gateway that come of them.

use std::sync::Arc;

use vestibule_model::client_address::ClientAddress;
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::meta::Meta;
use vestibule_model::object::Object;
use vestibule_model::parameters::{
    GatewayParameters, HttpParameters, LimitParameters, ServiceParameters,
};
use vestibule_model::reference::Reference;
use vestibule_operator::translate::Translator;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ResourceKey, ResourceKind};

use crate::objects::{our_class, parameters_at};

/// Parameters in the platform's namespace that set nothing.
pub fn no_parameters(name: &str) -> GatewayParameters {
    GatewayParameters {
        name: ObjectName::new("platform", name),
        meta: Meta::default(),
        service: ServiceParameters::default(),
        limits: LimitParameters::default(),
        client_address: ClientAddress::default(),
        http: HttpParameters::default(),
        certificate_namespaces: None,
        findings: Vec::new(),
    }
}

/// Parameters in the platform's namespace that do not decode.
pub fn unreadable_parameters(name: &str) -> Object {
    let key = ObjectKey {
        kind: Kind::GatewayParameters,
        name: ObjectName::new("platform", name),
    };
    let finding = Finding::refused(Reason::Unreadable, "spec", "does not decode", "");
    Object::Unreadable(key, Meta::default(), finding)
}

/// Our class, with parameters.
pub fn class_with(parameters: Reference) -> Object {
    let Object::GatewayClass(mut class) = our_class() else {
        unreachable!("a class")
    };
    class.parameters = Some(parameters);
    Object::GatewayClass(class)
}

/// A Gateway with parameters of its own, in the platform's namespace.
pub fn gateway_with(gateway: Object, parameters: &str) -> Object {
    let Object::Gateway(mut gateway) = gateway else {
        unreachable!("a Gateway")
    };
    Arc::make_mut(&mut gateway).infrastructure.parameters = Some(parameters_at(parameters));
    Object::Gateway(gateway)
}

/// The settings that the proxies get for a Gateway.
pub fn settings_of(translator: &Translator, gateway: &str) -> proto::GatewaySettings {
    let key = ResourceKey::new(ResourceKind::GatewaySettings, gateway);
    let encoded = translator.resources().get(&key).expect("the settings");
    match encoded.decode() {
        Some(resource::Resource::GatewaySettings(settings)) => settings,
        other => panic!("{other:?} are no settings"),
    }
}
