//! The authority by which the API server trusts the webhook, and proxies the stream, is made anew: in the order of
//! things, but within a minute instead of months.

use anyhow::{Context as _, Result, ensure};
use jiff::{ToSpan as _, tz::TimeZone};
use serde_json::json;

use crate::api::{self, data, items, name, text};
use crate::certificate;
use crate::clock;
use crate::encoding::{base64, from_base64};
use crate::wait::{LATER, SOON, until};
use crate::world::{NAMESPACE, OPERATOR, PROXY, RELEASE, WEBHOOK, World};

/// Annotation of the authority's Secret: since when the bundle is published.
const PUBLISHED: &str = "vestibule.dev/bundle-published";
/// End of a certificate in PEM.
const END: &str = "-----END CERTIFICATE-----";

/// The authority becomes as old as it is when it is due, and then the day is over for which both are trusted: the
/// operator makes another one, has it trusted, and only then signs by it. Ends when `signed` says so of both pods.
/// Gives how many authorities the API server trusts.
pub(super) async fn exchange(
    world: &World,
    shown: impl AsyncFn(&str) -> Result<()>,
) -> Result<usize> {
    let authority = format!("{RELEASE}-ca");
    let read = async || world.api.must_get(api::SECRET, NAMESPACE, &authority).await;
    let before = read().await?;
    let (old, key) = (data(&before, "tls.crt")?, data(&before, "tls.key")?);
    let today = clock::now().to_zoned(TimeZone::UTC).date();
    let (from, to) = (today - 300.days(), today + 65.days());
    let aged = certificate::aged("due", &key, from, to)?;
    let bundle = format!("{aged}{}", data(&before, "ca.crt")?);
    let change = json!({"data": {
        "tls.crt": base64(aged.as_bytes()),
        "ca.crt": base64(bundle.as_bytes()),
    }});
    world
        .api
        .patch(api::SECRET, NAMESPACE, &authority, &change)
        .await?;

    let new = until("another authority that is trusted", SOON, async || {
        let secret = read().await?;
        let new = data(&secret, "tls.crt")?;
        ensure!(new != old && new != aged, "it is the old one");
        let published = secret["metadata"]["annotations"].get(PUBLISHED);
        ensure!(published.is_some(), "it is not published");
        let trusted = trusted(world).await?;
        for (whose, certificate) in [("new", &new), ("old", &old)] {
            ensure!(
                trusted.contains(certificate.trim()),
                "the {whose} one is not trusted"
            );
        }
        Ok(new)
    })
    .await?;
    // A kubelet looks at what pods mount about once a minute, or when the pod changes.
    touch(world, &[PROXY]).await?;

    let leaf = format!("{}-tls", world.component(WEBHOOK));
    let signed = world.api.must_get(api::SECRET, NAMESPACE, &leaf).await?;
    let two_days_ago = clock::now().as_second() - 2 * 86_400;
    let change = json!({"metadata": {"annotations": {PUBLISHED: two_days_ago.to_string()}}});
    world
        .api
        .patch(api::SECRET, NAMESPACE, &authority, &change)
        .await?;
    until("a certificate by the new one", SOON, async || {
        let now = world.api.must_get(api::SECRET, NAMESPACE, &leaf).await?;
        ensure!(
            data(&now, "tls.crt")? != data(&signed, "tls.crt")?,
            "it is the old one"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    touch(world, &[WEBHOOK, OPERATOR]).await?;
    let file = world.out.join("authority.pem");
    tokio::fs::write(&file, &new).await?;
    let file = file.to_string_lossy();
    until("both pods to show it", LATER, async || shown(&file).await).await?;
    Ok(trusted(world).await?.matches(END).count())
}

/// The bundle by which the API server trusts the webhook, as PEM.
async fn trusted(world: &World) -> Result<String> {
    let selector = format!("app.kubernetes.io/instance={RELEASE}");
    let configurations = world.api.list(api::WEBHOOK, "", &selector).await?;
    let configuration = configurations.first().context("no configuration")?;
    let mut bundles = items(configuration, "/webhooks")
        .iter()
        .map(|entry| text(entry, "/clientConfig/caBundle"));
    let bundle = bundles.next().unwrap_or_default();
    ensure!(
        bundles.all(|other| other == bundle),
        "the entries trust different ones"
    );
    Ok(String::from_utf8(from_base64(bundle)?)?)
}

/// Has the kubelets look at the pods of components.
pub(super) async fn touch(world: &World, components: &[&str]) -> Result<()> {
    let now = clock::now().to_string();
    let change = json!({"metadata": {"annotations": {"vestibule-e2e": now}}});
    for component in components {
        for pod in world.pods(component).await? {
            world
                .api
                .patch(api::POD, NAMESPACE, name(&pod), &change)
                .await?;
        }
    }
    Ok(())
}
