//! The local functions that calls came for, and the images that the runner said are theirs.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::entrypoint::Entrypoint;
use engine::executor::{Executor, Limits};
use engine::metrics::Metrics;
use engine::places::Places;
use engine::process::child::Function;
use engine::process::family::Family;
use engine::rpc::evaluate::max_resource_list;
use engine::standby::Terms;
use tokio::task::AbortHandle;

use crate::link::Link;
use crate::messages::{Configure, Load, News, Run, StandbyLoad, Unfit};

/// Spellings of images without number must not fill the memory.
const MOST_IMAGES: usize = 1024;
/// Less would be nothing but starts.
const SHORTEST_STANDBY: f64 = 0.1;
/// A hundred years: there is no moment on the clock that is as far away as one may ask.
const LONGEST_STANDBY: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

/// Counts how often everything was forgotten.
pub type Edition = u64;

/// What the runner configured, for all of them.
pub struct Functions {
    link: Link,
    configured: Configure,
    places: Arc<Places>,
    family: Arc<Family>,
    metrics: Arc<Metrics>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_name: HashMap<String, Arc<LocalFunction>>,
    by_image: HashMap<String, Arc<LocalFunction>>,
    edition: Edition,
    /// No process is to wait any more.
    is_ending: bool,
}

/// One executable of the configuration file.
pub struct LocalFunction {
    pub name: String,
    pub executor: Executor,
    standby: u32,
    attended: Mutex<Option<AbortHandle>>,
}

impl Functions {
    pub fn new(link: Link, configured: &Configure, family: Arc<Family>) -> Self {
        let places = Places::new(configured.max_parallel as usize, configured.max_function_memory);
        let configured = configured.clone();
        Self { link, configured, places, family, metrics: Arc::default(), known: Mutex::default() }
    }

    /// The function that an image was said to be, if the runner was asked before.
    pub fn of_image(&self, image: &str) -> Option<Arc<LocalFunction>> {
        self.known().by_image.get(image).cloned()
    }

    /// The one that the runner names for a call of that image; fails when nobody can attend to its processes in standby.
    /// What it said before it forgot is not remembered.
    pub fn named(&self, run: &Run, image: &str, edition: Edition) -> io::Result<Arc<LocalFunction>> {
        let mut known = self.known();
        let found = known.by_name.get(&run.function).cloned();
        if edition != known.edition {
            // It may not be in the configuration any more, or in another way: nothing of it stays.
            return found.map_or_else(|| self.make(&Run { standby: 0, ..run.clone() }, &known), Ok);
        }
        let function = found.map_or_else(|| self.make(run, &known), Ok)?;
        known.by_name.entry(run.function.clone()).or_insert_with(|| Arc::clone(&function));
        if known.by_image.len() >= MOST_IMAGES {
            known.by_image.clear();
        }
        known.by_image.insert(image.to_owned(), Arc::clone(&function));
        Ok(function)
    }

    /// The one that is in force.
    pub fn edition(&self) -> Edition {
        self.known().edition
    }

    /// The configuration file is another: nothing that was said before counts, and functions that want another number of
    /// processes in standby are made anew.
    pub fn forget(&self, standby: &HashMap<String, u32>) {
        let mut known = self.known();
        known.by_image.clear();
        known.edition += 1;
        let stays = |function: &LocalFunction| standby.get(&function.name) == Some(&function.standby);
        let leaving: Vec<_> = known.by_name.extract_if(|_, function| !stays(function)).collect();
        drop(known);
        for (_, function) in leaving {
            function.end_standby();
        }
    }

    /// No process waits any more, and none is started that would.
    pub fn end_standby(&self) {
        let mut known = self.known();
        known.is_ending = true;
        let functions: Vec<_> = known.by_name.values().cloned().collect();
        drop(known);
        for function in functions {
            function.end_standby();
        }
    }

    /// They are ended, and gone.
    pub fn wait_for_end_of_standby(&self) {
        self.end_standby();
        let functions: Vec<_> = self.known().by_name.values().cloned().collect();
        for function in functions {
            function.executor.wait_for_end_of_standby();
        }
    }

    /// How much is under way.
    pub fn load(&self) -> Load {
        let load = self.places.load();
        let functions: Vec<_> = self.known().by_name.values().cloned().collect();
        let standby = functions.iter().filter_map(|function| {
            let census = function.executor.census()?;
            let (processes, memory) = (census.waiting as u64, census.private_memory.unwrap_or_default());
            Some(StandbyLoad { function: function.name.clone(), processes, memory })
        });
        Load {
            running: load.running as u64,
            waiting: load.waiting as u64,
            memory: self.places.workers.memory(),
            standby: standby.collect(),
            ..Load::default()
        }
    }

    fn make(&self, run: &Run, known: &Known) -> io::Result<Arc<LocalFunction>> {
        let configured = &self.configured;
        let path = CString::new(run.path.clone()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let entrypoint = Entrypoint { executable: path.clone(), argv: vec![path] };
        let function = Function { entrypoint, family: Arc::clone(&self.family), is_configured: true };
        let message_limit = usize::try_from(configured.message_limit).unwrap_or(usize::MAX);
        let limits = Limits {
            max_parallel: configured.max_parallel as usize,
            max_waiting: configured.max_waiting as usize,
            max_memory: configured.max_function_memory,
            max_output: max_resource_list(message_limit),
            message_limit,
        };
        let wanted = if known.is_ending { 0 } else { run.standby };
        let terms = Terms {
            wanted: wanted as usize,
            cpus: configured.cpus as usize,
            max_age: seconds(configured.standby_max_age_seconds),
            idle: seconds(configured.standby_idle_seconds),
        };
        let (link, name) = (self.link.clone(), run.function.clone());
        let unfit = Box::new(move |why: &str| {
            link.tell(News::Unfit(Unfit { function: name.clone(), why: why.to_owned() }));
        });
        let standby = Some(terms).filter(|terms| terms.wanted > 0).map(|terms| (terms, unfit as _));
        let executor = Executor::new(function, Arc::clone(&self.places), limits, standby, Arc::clone(&self.metrics))?;
        let made =
            LocalFunction { name: run.function.clone(), executor, standby: run.standby, attended: Mutex::default() };
        let function = Arc::new(made);
        if wanted > 0 {
            let attended = Arc::clone(&function);
            let task = tokio::spawn(async move { attended.executor.keep_standby(false).await });
            *function.attended() = Some(task.abort_handle());
        }
        Ok(function)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalFunction {
    fn end_standby(&self) {
        if let Some(task) = self.attended().take() {
            task.abort();
        }
        self.executor.end_standby();
    }

    fn attended(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.attended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number.clamp(SHORTEST_STANDBY, LONGEST_STANDBY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        let configured = Configure { max_parallel: 2, max_waiting: 10, message_limit: 1000, ..Configure::default() };
        Functions::new(Link::to_nobody(), &configured, Arc::default())
    }

    fn run(function: &str) -> Run {
        Run { function: function.into(), path: b"/bin/cat".to_vec(), ..Run::default() }
    }

    fn named(functions: &Functions, image: &str) -> Arc<LocalFunction> {
        functions.named(&run("f"), image, functions.edition()).unwrap()
    }

    #[test]
    fn what_was_said_before_everything_was_forgotten_is_not_remembered() {
        let functions = functions();
        let before = functions.edition();
        functions.forget(&HashMap::new());
        functions.named(&run("f"), "a", before).unwrap();
        assert!(functions.of_image("a").is_none());
        assert!(functions.known().by_name.is_empty(), "it would keep processes that nobody wants");
    }

    #[test]
    fn an_image_is_known_once_the_runner_said_so_and_until_it_forgets() {
        let functions = functions();
        assert!(functions.of_image("a").is_none());
        let first = named(&functions, "a");
        let again = named(&functions, "b");
        assert!(Arc::ptr_eq(&first, &again));
        assert!(functions.of_image("a").is_some() && functions.of_image("b").is_some());
        functions.forget(&HashMap::from([("f".to_owned(), 0)]));
        assert!(functions.of_image("a").is_none());
        assert!(Arc::ptr_eq(&first, &named(&functions, "a")), "what it learnt is kept");
        functions.forget(&HashMap::from([("f".to_owned(), 1)]));
        assert!(!Arc::ptr_eq(&first, &named(&functions, "a")));
        functions.forget(&HashMap::new());
        assert!(functions.known().by_name.is_empty());
    }

    #[test]
    fn spellings_without_number_do_not_fill_the_memory() {
        let functions = functions();
        for number in 0..3 * MOST_IMAGES {
            named(&functions, &number.to_string());
        }
        assert!(functions.known().by_image.len() <= MOST_IMAGES);
    }
}
