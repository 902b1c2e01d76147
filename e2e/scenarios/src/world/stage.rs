//! A scenario's own namespaces: the platform's with a Gateway, and those of teams.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{CLASS, World};
use crate::api::{self, Api};
use crate::certificate::Authority;
use crate::client::Target;
use crate::conditions;
use crate::manifests::{self, Mode};
use crate::tools::Kubectl;
use crate::wait::{LATER, SOON, until};

/// Name of a stage's Gateway.
const GATEWAY: &str = "shared";
/// Name of a team's ServiceAccount.
const ACCOUNT: &str = "team";

/// A scenario's namespaces. They are deleted when it has passed.
pub(crate) struct Stage {
    /// The world it is in.
    pub(crate) world: Arc<World>,
    /// Its name, which is the scenario's.
    pub(crate) name: String,
    namespaces: Mutex<Vec<String>>,
}

/// A team: a namespace, an identity that may do what the tenant Role says, a CA of its own.
pub(crate) struct Team {
    /// Its namespace.
    pub(crate) namespace: String,
    /// `kubectl` under its identity.
    pub(crate) kubectl: Kubectl,
    /// The API server under its identity.
    pub(crate) api: Api,
    /// Who signs its certificates.
    pub(crate) authority: Authority,
    /// Namespace and name of the Gateway it uses.
    pub(crate) gateway: (String, String),
}

/// Whether a namespace is a scenario's.
pub(crate) fn is_of_a_scenario(namespace: &str) -> bool {
    namespace.starts_with("e2e-")
}

impl Stage {
    /// A stage without namespaces.
    pub(crate) fn new(world: &Arc<World>, name: &str) -> Self {
        Self {
            world: world.clone(),
            name: name.to_owned(),
            namespaces: Mutex::default(),
        }
    }

    /// Makes a namespace for a role in this stage.
    pub(crate) async fn namespace(&self, role: &str) -> Result<String> {
        let name = format!("e2e-{}-{role}", self.name);
        // An earlier run that was kept may have left one.
        until(
            &format!("namespace {name} to be free"),
            LATER,
            async || match self.world.api.get(api::NAMESPACE, "", &name).await? {
                Some(old) if old.pointer("/metadata/deletionTimestamp").is_none() => {
                    self.world.api.delete(api::NAMESPACE, "", &name).await?;
                    anyhow::bail!("deleting it")
                }
                Some(_) => anyhow::bail!("it is being deleted"),
                None => Ok(()),
            },
        )
        .await?;
        self.world
            .api
            .create(api::NAMESPACE, "", &manifests::namespace(&name, &self.name))
            .await?;
        self.remember(&name);
        Ok(name)
    }

    /// Has a namespace that the scenario made itself deleted with the stage.
    pub(crate) fn remember(&self, namespace: &str) {
        self.namespaces.lock().push(namespace.to_owned());
    }

    /// Makes the platform's namespace and in it a Gateway that is open to this stage's ListenerSets.
    /// Waits until it has an address and is programmed.
    pub(crate) async fn gateway(&self) -> Result<(String, String)> {
        let namespace = self.namespace("platform").await?;
        // A Gateway has to have a listener of its own; nobody uses this one.
        let own = manifests::listener("own", &format!("own.{}.test", self.name), Mode::Passthrough);
        let gateway = manifests::gateway(&namespace, GATEWAY, CLASS, &[own]);
        let gateway = manifests::open_to(gateway, &self.name);
        self.world.kubectl.apply(&[gateway]).await?.must()?;
        self.gateway_served(&namespace, GATEWAY).await?;
        Ok((namespace, GATEWAY.to_owned()))
    }

    /// Waits until a Gateway has an address, is accepted and is programmed.
    pub(crate) async fn gateway_served(&self, namespace: &str, name: &str) -> Result<Value> {
        until(&format!("Gateway {namespace}/{name}"), SOON, async || {
            let gateway = self
                .world
                .api
                .must_get(api::GATEWAY, namespace, name)
                .await?;
            conditions::of_object(&gateway, "Accepted", "True", None)?;
            conditions::of_object(&gateway, "Programmed", "True", None)?;
            ensure!(
                !api::text(&gateway, "/status/addresses/0/value").is_empty(),
                "no address"
            );
            Ok::<_, anyhow::Error>(gateway)
        })
        .await
    }

    /// Makes a team: its namespace, and an identity with the tenant Role in it and nothing else.
    pub(crate) async fn team(&self, role: &str, gateway: &(String, String)) -> Result<Team> {
        let namespace = self.namespace(role).await?;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": ACCOUNT, "namespace": namespace}});
        self.world
            .api
            .create(api::SERVICE_ACCOUNT, &namespace, &account)
            .await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": ACCOUNT, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": super::TENANT_ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        });
        self.world.kubectl.apply(&[binding]).await?.must()?;
        let kubeconfig = self.world.identity(&namespace, ACCOUNT).await?;
        let file = self.world.out.join(format!("{namespace}.kubeconfig"));
        tokio::fs::write(&file, &kubeconfig).await?;
        Ok(Team {
            kubectl: Kubectl::new(self.world.kubectl_program.clone(), file),
            api: Api::new(&kubeconfig).await?,
            authority: Authority::new(&namespace)?,
            namespace,
            gateway: gateway.clone(),
        })
    }

    /// Starts a backend `web` for a team, whose own certificate is good for the hostnames. Waits for it.
    pub(crate) async fn backend(&self, team: &Team, hostnames: &[&str]) -> Result<()> {
        let leaf = team.authority.leaf(hostnames)?;
        let mut objects = vec![manifests::tls_secret(
            &team.namespace,
            "web-tls",
            &leaf.chain,
            &leaf.key,
        )];
        objects.extend(manifests::backend(
            &team.namespace,
            "web",
            &self.world.image("e2e"),
        ));
        self.world.kubectl.apply(&objects).await?.must()?;
        self.available(&team.namespace, "web").await
    }

    /// Waits until a Deployment is available.
    pub(crate) async fn available(&self, namespace: &str, name: &str) -> Result<()> {
        until(
            &format!("Deployment {namespace}/{name}"),
            LATER,
            async || {
                let deployment = self
                    .world
                    .api
                    .must_get(api::DEPLOYMENT, namespace, name)
                    .await?;
                let available = deployment.pointer("/status/availableReplicas");
                ensure!(
                    available == deployment.pointer("/spec/replicas"),
                    "{available:?} available"
                );
                Ok::<_, anyhow::Error>(())
            },
        )
        .await
    }

    /// Waits until an object satisfies a check.
    pub(crate) async fn see(
        &self,
        kind: api::Kind,
        namespace: &str,
        name: &str,
        check: impl Fn(&Value) -> Result<()>,
    ) -> Result<Value> {
        until(&format!("status of {namespace}/{name}"), SOON, async || {
            let object = self.world.api.must_get(kind, namespace, name).await?;
            check(&object).map(|()| object)
        })
        .await
    }

    /// Deletes the stage's namespaces; does not wait. Which keys there were is remembered.
    pub(crate) async fn strike(&self) -> Result<()> {
        for namespace in self.all() {
            let keys = self.world.stored_keys(&namespace).await?;
            self.world.keys.lock().extend(keys);
            self.world
                .api
                .delete(api::NAMESPACE, "", &namespace)
                .await?;
        }
        Ok(())
    }

    /// The stage's namespaces.
    pub(crate) fn all(&self) -> Vec<String> {
        self.namespaces.lock().clone()
    }
}

impl Team {
    /// The Gateway as a pair of words.
    pub(crate) fn parent(&self) -> (&str, &str) {
        (&self.gateway.0, &self.gateway.1)
    }

    /// What a team of the tenant story applies: a Secret, a ListenerSet `web` with a terminated and a
    /// passed-through hostname, and a route for each.
    pub(crate) fn story(&self, terminated: &str, passed: &str) -> Result<Vec<Value>> {
        let leaf = self.authority.leaf(&[terminated])?;
        let listeners = [
            manifests::listener("terminated", terminated, Mode::Terminate("site-tls")),
            manifests::listener("passed", passed, Mode::Passthrough),
        ];
        let to = |listener| manifests::to_listener_set("web", Some(listener));
        let space = &self.namespace;
        Ok(vec![
            manifests::tls_secret(space, "site-tls", &leaf.chain, &leaf.key),
            manifests::listener_set(space, "web", self.parent(), &listeners),
            manifests::tls_route(
                space,
                "terminated",
                &to("terminated"),
                terminated,
                ("web", 80),
            ),
            manifests::tls_route(space, "passed", &to("passed"), passed, ("web", 443)),
        ])
    }

    /// Waits until all that [`Self::story`] made is served and its statuses are complete.
    pub(crate) async fn served(&self, stage: &Stage) -> Result<()> {
        let space = &self.namespace;
        stage
            .see(api::LISTENER_SET, space, "web", |set| {
                conditions::is_served(set, 1)
            })
            .await?;
        for route in ["terminated", "passed"] {
            stage
                .see(api::TLS_ROUTE, space, route, conditions::is_attached)
                .await?;
        }
        Ok(())
    }

    /// A hostname of this team at its Gateway.
    pub(crate) async fn target(&self, world: &World, hostname: &str) -> Result<Target> {
        let address = world.address(&self.gateway.0, &self.gateway.1, 443).await?;
        Target::new(address, hostname, self.authority.roots()?)
    }

    /// Waits until a hostname is answered by this team's backend.
    pub(crate) async fn answers(&self, target: &Target) -> Result<()> {
        let answer = until("the first answer", SOON, async || {
            target.ask().await.map_err(|failure| format!("{failure:?}"))
        })
        .await?;
        ensure!(
            answer.namespace == self.namespace,
            "answered by {} instead of {}",
            answer.namespace,
            self.namespace
        );
        Ok(())
    }

    /// The object as this team sees it.
    pub(crate) async fn get(&self, kind: api::Kind, name: &str) -> Result<Value> {
        self.api
            .must_get(kind, &self.namespace, name)
            .await
            .with_context(|| format!("as team of {}", self.namespace))
    }
}
