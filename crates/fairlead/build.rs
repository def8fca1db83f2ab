//! Packs what the loader has to adjust: otherwise it is a megabyte and a half that every process reads at its start and
//! that counts as its memory. Linkers that cannot do it say so and go on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
