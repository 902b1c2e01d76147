//! Generates the messages from `proto/stream.proto` with a parser written in Rust: no `protoc` needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/stream.proto");
    let descriptors = protox::compile(["proto/stream.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".vestibule.stream.v1.Certificate.chain")
        // A derived Debug would print the private key.
        .skip_debug([
            "vestibule.stream.v1.Certificate",
            "vestibule.stream.v1.TlsAlpn01",
            "vestibule.stream.v1.Http01",
            "vestibule.stream.v1.SessionKey",
            "vestibule.stream.v1.Upsert",
        ])
        .bytes(".vestibule.stream.v1.Upsert.resource")
        // Keys and generations are ordered: by kind, then name; by term, then counter.
        .type_attribute(
            "vestibule.stream.v1.ResourceKey",
            "#[derive(PartialOrd, Ord)]",
        )
        .type_attribute(
            "vestibule.stream.v1.Generation",
            "#[derive(PartialOrd, Ord)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}
