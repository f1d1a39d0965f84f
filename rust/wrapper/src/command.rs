//! What is to be executed: what comes after `--`; or, in a pod that was made before its function was known, what a
//! variable says, which Kubernetes fills from an annotation when it starts the container.
//!
//! An empty variable means that there is no function yet: the pod is a spare. The variable is taken out again before a
//! function can be started with it.

use std::ffi::OsString;

pub const VARIABLE: &str = "KRM_RUNNER_COMMAND";

/// The command of the function; nothing when this pod has none yet.
pub fn take(arguments: Vec<OsString>) -> Result<Option<Vec<OsString>>, String> {
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(Some(arguments)) };
    // SAFETY: called at the start of main, when there is no other thread.
    unsafe { std::env::remove_var(VARIABLE) };
    if !arguments.is_empty() {
        return Ok(Some(arguments));
    }
    if value.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("the variable {VARIABLE} is set, but not to words, each on a line of its own");
    value.to_str().and_then(words).map(Some).ok_or_else(wrong)
}

/// One on each line; in a word, `\n` is a new line and `\\` a backslash.
fn words(text: &str) -> Option<Vec<OsString>> {
    text.split('\n').map(word).collect()
}

fn word(line: &str) -> Option<OsString> {
    let mut word = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        word.push(match character {
            '\\' => match characters.next()? {
                'n' => '\n',
                '\\' => '\\',
                _ => return None,
            },
            other => other,
        });
    }
    Some(word.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_on_each_line() {
        assert_eq!(words("/function").unwrap(), ["/function"]);
        assert_eq!(words("sh\n-c\n\na b").unwrap(), ["sh", "-c", "", "a b"]);
        assert_eq!(words("a\\nb\n\\\\n\n$(HOME)").unwrap(), ["a\nb", "\\n", "$(HOME)"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert_eq!(words("a\\"), None);
        assert_eq!(words("a\\t"), None);
    }
}
