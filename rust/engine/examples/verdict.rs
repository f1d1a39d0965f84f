//! The envelope check on its own, for tests that hold it against the runner's: documents come on stdin, each after its
//! length in four bytes (little-endian); for each one a line goes to stdout: `glance` or `parse` (whether a glance was
//! enough), and the verdict of a full parse: `yes` with the number of results, or `no` with the reason.

use std::io::{self, BufRead, BufWriter, Read, Write};

use engine::envelope::{parse, recognise};

fn main() -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut output = BufWriter::new(io::stdout().lock());
    while !input.fill_buf()?.is_empty() {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let mut document = vec![0; u32::from_le_bytes(length) as usize];
        input.read_exact(&mut document)?;
        let way = if recognise(&document).is_some() { "glance" } else { "parse" };
        match parse(&document, &|| false) {
            Ok(envelope) => writeln!(output, "{way} yes {}", envelope.results.len())?,
            Err(why) => writeln!(output, "{way} no {}", why.replace('\n', " "))?,
        }
        output.flush()?;
    }
    Ok(())
}
