//! A function's stderr, bounded: the first and the last part are kept, and a line says what was cut.

use std::collections::VecDeque;

pub const LOG_LIMIT: usize = 64 * 1024;

/// Takes bytes as they come and never holds more than `limit` of them.
pub struct LogExcerpt {
    head_limit: usize,
    tail_limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: usize,
}

impl Default for LogExcerpt {
    fn default() -> Self {
        Self::new(LOG_LIMIT)
    }
}

impl LogExcerpt {
    pub fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self { head_limit, tail_limit: limit - head_limit, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Append what the function wrote.
    pub fn add(&mut self, chunk: &[u8]) {
        self.total += chunk.len();
        let room = (self.head_limit - self.head.len()).min(chunk.len());
        self.head.extend_from_slice(&chunk[..room]);
        let rest = &chunk[room..];
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
    }

    /// What was kept, with a line in the middle when something was cut.
    pub fn into_bytes(self) -> Vec<u8> {
        let cut = self.total - self.head.len() - self.tail.len();
        let mut log = self.head;
        if cut > 0 {
            log.extend_from_slice(cut_line(cut).as_bytes());
        }
        log.extend(self.tail);
        log
    }
}

fn cut_line(count: usize) -> String {
    format!("\n... [{count} bytes cut] ...\n")
}

/// The log in at most `limit` bytes, by the same rule; nothing at all when there is no room for the line.
pub fn shorten(log: Vec<u8>, limit: usize) -> Vec<u8> {
    if log.len() <= limit {
        return log;
    }
    let Some(room) = limit.checked_sub(cut_line(log.len()).len()).filter(|room| *room > 0) else {
        return Vec::new();
    };
    let head = room / 2;
    let tail = room - head;
    [&log[..head], cut_line(log.len() - room).as_bytes(), &log[log.len() - tail..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(limit: usize, chunks: &[&[u8]]) -> String {
        let mut excerpt = LogExcerpt::new(limit);
        for chunk in chunks {
            excerpt.add(chunk);
        }
        String::from_utf8(excerpt.into_bytes()).unwrap()
    }

    #[test]
    fn keeps_all_that_fits() {
        assert_eq!(excerpt(8, &[b"abc", b"", b"defgh"]), "abcdefgh");
    }

    #[test]
    fn keeps_both_ends_however_it_comes() {
        assert_eq!(excerpt(8, &[b"abcdefghijkl"]), "abcd\n... [4 bytes cut] ...\nijkl");
        assert_eq!(excerpt(8, &[b"abc", b"defghi", b"jkl"]), "abcd\n... [4 bytes cut] ...\nijkl");
    }

    #[test]
    fn shortens_to_the_limit_or_to_nothing() {
        let log = vec![b'x'; 1000];
        assert_eq!(shorten(log.clone(), 1000), log);
        assert!(shorten(log.clone(), 100).len() <= 100);
        assert_eq!(shorten(log, 10), b"");
    }
}
