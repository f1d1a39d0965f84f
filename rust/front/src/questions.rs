//! Calls that the runner was asked about, and waits for what it says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::functions::Edition;
use crate::link::Link;
use crate::messages::{Forward, Gone, News, Refuse, Run};
use crate::pods::Engaged;

/// Of one call that were not acted upon yet.
const MOST_ANSWERS: usize = 16;

/// What the runner wants done with a call.
pub enum Answer {
    /// With the edition of what is remembered that it belongs to.
    Run(Run, Edition),
    /// By the connection that its number stood for, which has the call from then on.
    Forward(Forward, Engaged),
    Refuse(Refuse),
}

impl Answer {
    fn id(&self) -> u64 {
        match self {
            Self::Run(run, _) => run.id,
            Self::Forward(forward, _) => forward.id,
            Self::Refuse(refuse) => refuse.id,
        }
    }
}

#[derive(Default)]
pub struct Questions {
    last: AtomicU64,
    open: Mutex<HashMap<u64, mpsc::Sender<Answer>>>,
}

/// One call; dropped before it is settled, its caller went away, and the runner hears that.
pub struct Question {
    pub id: u64,
    answers: mpsc::Receiver<Answer>,
    questions: Arc<Questions>,
    link: Link,
    is_settled: bool,
}

impl Questions {
    pub fn open(self: &Arc<Self>, link: &Link) -> Question {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answers) = mpsc::channel(MOST_ANSWERS);
        self.opened().insert(id, sender);
        Question { id, answers, questions: Arc::clone(self), link: link.clone(), is_settled: false }
    }

    /// The runner answers; a call whose caller went away meanwhile needs no answer.
    pub fn answer(&self, answer: Answer) {
        if let Some(sender) = self.opened().get(&answer.id()) {
            // A call that does not act is stuck in a pod, and ends by its deadline.
            let _ = sender.try_send(answer);
        }
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<Answer>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Question {
    /// What the runner says next.
    pub async fn next(&mut self) -> Answer {
        self.answers.recv().await.expect("it is open as long as we are here")
    }

    /// The runner need not be told that it is over.
    pub fn settle(&mut self) {
        self.is_settled = true;
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.questions.opened().remove(&self.id);
        if !self.is_settled {
            self.link.tell(News::Gone(Gone { id: self.id }));
        }
    }
}
