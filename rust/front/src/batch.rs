//! What leaves for the runner together.
//!
//! Of a call that went to its pod by a promise, and is answered before the runner was told that it came, all is said in one
//! message: nothing of it is left to decide.

use std::collections::HashMap;

use prost::Message;

use crate::messages::{Call, Forwarded, FromFront, News, Outcome, Served};

#[derive(Default)]
pub struct Batch {
    news: Vec<News>,
    /// Where the calls are that went by a promise, by their numbers.
    promised: HashMap<u64, usize>,
    bytes: usize,
}

impl Batch {
    /// About as large as what will leave.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add(&mut self, news: News) {
        match news {
            News::Forwarded(Forwarded { id, connection, outcome: Some(Outcome::Answered(answered)) })
                if self.has_call(id, connection) =>
            {
                let place = self.promised[&id];
                if let News::Call(Call { image, message_bytes, span, .. }) = &mut self.news[place] {
                    let (image, message_bytes, span) = (std::mem::take(image), *message_bytes, span.take());
                    self.promised.remove(&id);
                    self.news[place] =
                        News::Served(Served { image, connection, message_bytes, answered: Some(answered), span });
                }
            }
            news => {
                if let News::Call(call) = &news
                    && call.is_promised
                {
                    self.promised.insert(call.id, self.news.len());
                }
                let message = FromFront { message: Some(news) };
                self.bytes += message.encoded_len();
                self.news.extend(message.message);
            }
        }
    }

    /// All of it, each message with its length before it; nothing is left.
    pub fn encode(&mut self, buffer: &mut Vec<u8>) {
        self.promised.clear();
        self.bytes = 0;
        for news in self.news.drain(..) {
            let message = FromFront { message: Some(news) };
            let size = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
            buffer.extend(size.to_be_bytes());
            message.encode(buffer).expect("a vector grows");
        }
    }

    /// Another attempt than that by the promise is something to hear of.
    fn has_call(&self, id: u64, connection: u64) -> bool {
        let place = self.promised.get(&id);
        place.is_some_and(|place| matches!(&self.news[*place], News::Call(call) if call.connection == connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Answered, Gone, Trouble};

    fn call(id: u64, is_promised: bool) -> News {
        let connection = if is_promised { 3 } else { 0 };
        News::Call(Call { id, image: "a".into(), message_bytes: 7, is_promised, connection, ..Call::default() })
    }

    fn answered(id: u64, connection: u64) -> News {
        let answered = Answered { response_bytes: 9, log_bytes: 1, seconds: 0.5 };
        News::Forwarded(Forwarded { id, connection, outcome: Some(Outcome::Answered(answered)) })
    }

    fn said(all: impl IntoIterator<Item = News>) -> Vec<News> {
        let mut batch = Batch::default();
        all.into_iter().for_each(|news| batch.add(news));
        batch.news
    }

    #[test]
    fn of_a_promised_call_that_is_over_all_is_said_at_once() {
        let (first, second) = (call(1, true), News::Gone(Gone { id: 5 }));
        let served = Served {
            image: "a".into(),
            connection: 3,
            message_bytes: 7,
            answered: Some(Answered { response_bytes: 9, log_bytes: 1, seconds: 0.5 }),
            span: None,
        };
        assert_eq!(said([first, second.clone(), answered(1, 3)]), [News::Served(served), second]);
    }

    #[test]
    fn whatever_else_becomes_of_a_call_is_said_as_it_is() {
        let trouble = Trouble { why: "lost".into(), reached: true, is_unnamed: false };
        let lost = News::Forwarded(Forwarded { id: 1, connection: 3, outcome: Some(Outcome::Trouble(trouble)) });
        for news in [
            vec![call(1, false), answered(1, 3)],
            vec![call(1, true), answered(2, 3)],
            vec![call(1, true), answered(1, 4)],
            vec![call(1, true), lost],
            vec![answered(1, 3)],
        ] {
            assert_eq!(said(news.clone()), news);
        }
    }

    #[test]
    fn what_has_left_is_not_said_again() {
        let (mut batch, mut buffer) = (Batch::default(), Vec::new());
        batch.add(call(1, true));
        assert!(batch.bytes() > 0);
        batch.encode(&mut buffer);
        assert_eq!((buffer.len() > 4, batch.bytes()), (true, 0));
        batch.add(answered(1, 3));
        assert_eq!(batch.news, [answered(1, 3)]);
    }
}
