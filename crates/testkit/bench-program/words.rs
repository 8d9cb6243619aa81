//! What the measured program says, for both sides.

pub const RUNNING: u8 = b'r';
pub const LISTENING: u8 = b'l';
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
/// Where it listens in a network of its own.
pub const PORT: u16 = 8080;
