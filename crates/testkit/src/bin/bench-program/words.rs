//! What the measured program says, for both sides.

pub(crate) const RUNNING: u8 = b'r';
pub(crate) const LISTENING: u8 = b'l';
pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
/// Where it listens in a network of its own.
pub(crate) const PORT: u16 = 8080;
