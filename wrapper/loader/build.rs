//! Nothing calls `main` here: there is no C library, nor what it starts programs with.

fn main() {
    println!("cargo:rustc-link-arg-bins=-nostartfiles");
    println!("cargo:rustc-link-arg-bins=-static");
}
