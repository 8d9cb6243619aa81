//! What holds the namespaces of a Pod: a program that does nothing until it is killed. It is built by itself and has no
//! part in this crate.

fn main() {
    loop {
        std::thread::park();
    }
}
