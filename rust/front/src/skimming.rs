//! The image of a request that is read in passing and not kept: of everything else only the lengths are looked at.

use crate::incoming::LONGEST_IMAGE;

/// The tag of `EvaluateFunctionRequest.image`.
const IMAGE: u64 = 2 << 3 | BYTES;
const BYTES: u64 = 2;
const WIRE_TYPE: u64 = 0b111;
/// A number of the wire has at most ten bytes of seven bits.
const MOST_BITS: u32 = 70;
/// In bytes: what is longer is no image, and its beginning tells whose it is.
const MOST_KEPT: usize = 4 * LONGEST_IMAGE;

/// Fed with a message in pieces, however it is cut.
#[derive(Default)]
pub struct Skimming {
    place: Place,
    number: u64,
    bits: u32,
    found: Vec<u8>,
}

/// Where in the message the next byte stands.
#[derive(Clone, Copy, Default)]
enum Place {
    #[default]
    Tag,
    /// A number that is a field by itself.
    Number,
    /// Of the field with this tag.
    Length(u64),
    /// In what nobody looks at: so many bytes to go.
    Skipped(u64),
    /// In an image: so many bytes to go.
    Image(u64),
    /// This is no such message.
    Lost,
}

impl Skimming {
    pub fn look(&mut self, mut data: &[u8]) {
        while let Some((&byte, rest)) = data.split_first() {
            match self.place {
                Place::Lost => return,
                Place::Skipped(left) => data = &data[self.pass(data, left, Place::Skipped)..],
                Place::Image(left) => {
                    let passed = self.pass(data, left, Place::Image);
                    let room = MOST_KEPT.saturating_sub(self.found.len()).min(passed);
                    self.found.extend_from_slice(&data[..room]);
                    data = &data[passed..];
                }
                Place::Tag | Place::Number | Place::Length(_) => {
                    self.digit(byte);
                    data = rest;
                }
            }
        }
    }

    /// The last one that is whole; none if it is not there, or no text.
    pub fn image(&self) -> Option<&str> {
        if !matches!(self.place, Place::Tag) || self.bits > 0 || self.found.is_empty() {
            return None;
        }
        let valid = self.found.utf8_chunks().next()?.valid();
        (valid.len() == self.found.len() || self.found.len() == MOST_KEPT).then_some(valid)
    }

    /// How many bytes of the data belong to the place, and the place behind them.
    fn pass(&mut self, data: &[u8], left: u64, place: fn(u64) -> Place) -> usize {
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
        let left = left - passed as u64;
        self.place = if left == 0 { Place::Tag } else { place(left) };
        passed
    }

    /// One byte of a number.
    fn digit(&mut self, byte: u8) {
        self.number |= u64::from(byte & 0x7f).checked_shl(self.bits).unwrap_or(0);
        self.bits += 7;
        if byte & 0x80 != 0 {
            if self.bits >= MOST_BITS {
                self.place = Place::Lost;
            }
            return;
        }
        let number = std::mem::take(&mut self.number);
        self.bits = 0;
        self.place = match self.place {
            Place::Tag => match number & WIRE_TYPE {
                0 => Place::Number,
                1 => Place::Skipped(8),
                BYTES => Place::Length(number),
                5 => Place::Skipped(4),
                _ => Place::Lost,
            },
            Place::Length(IMAGE) => {
                self.found.clear();
                if number == 0 { Place::Tag } else { Place::Image(number) }
            }
            Place::Length(_) if number > 0 => Place::Skipped(number),
            _ => Place::Tag,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::rpc::messages::EvaluateFunctionRequest;
    use prost::Message;

    fn skim(message: &[u8], piece: usize) -> Option<String> {
        let mut skimming = Skimming::default();
        for data in message.chunks(piece) {
            skimming.look(data);
        }
        skimming.image().map(str::to_owned)
    }

    fn message(list: usize, image: &str) -> Vec<u8> {
        EvaluateFunctionRequest { resource_list: vec![b'#'; list].into(), image: image.into() }.encode_to_vec()
    }

    #[test]
    fn the_image_is_found_however_the_message_is_cut() {
        for list in [0, 1, 127, 128, 20_000] {
            let bytes = message(list, "registry.example/ä:v1");
            for piece in [1, 2, 3, 7, bytes.len()] {
                assert_eq!(skim(&bytes, piece).as_deref(), Some("registry.example/ä:v1"));
            }
        }
    }

    #[test]
    fn fields_in_another_order_and_unknown_ones_are_passed_over() {
        let mut bytes = EvaluateFunctionRequest { image: "first".into(), ..Default::default() }.encode_to_vec();
        bytes.extend([0x18, 0xff, 0x01]); // field 3, a number
        bytes.extend([0x21, 1, 2, 3, 4, 5, 6, 7, 8]); // field 4, eight bytes
        bytes.extend([0x2d, 1, 2, 3, 4]); // field 5, four bytes
        bytes.extend(message(300, "second"));
        bytes.extend([0x0a, 0]); // an empty list
        assert_eq!(skim(&bytes, 1).as_deref(), Some("second"));
    }

    #[test]
    fn what_is_cut_off_or_no_message_has_none() {
        let bytes = message(10, "an-image");
        for end in 0..bytes.len() {
            assert_eq!(skim(&bytes[..end], 3), None, "{end}");
        }
        for bytes in [&[0xff; 30][..], &[0x0b], &[0x12, 0], &[0x12, 1, 0xff], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(skim(bytes, 1), None, "{bytes:?}");
        }
    }

    #[test]
    fn of_an_endless_image_only_the_beginning_is_kept() {
        let bytes = message(0, &"ä".repeat(100_000));
        assert_eq!(skim(&bytes, 1000).map(|image| image.len()), Some(MOST_KEPT));
    }
}
