//! Batches in a file. Each message is preceded by its length as a varint.

use std::io::{self, Read, Write};

use prost::Message;

use crate::{limits::MAX_MESSAGE_BYTES, proto::Batch};

/// Why a recording cannot be read. The batches before the error remain valid.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be read.
    #[error("cannot read the recording: {0}")]
    Io(#[from] io::Error),
    /// The file ends inside a message.
    #[error("the recording ends inside a message")]
    Truncated,
    /// A message is longer than [`MAX_MESSAGE_BYTES`], or its length is not a varint.
    #[error("a message of the recording is longer than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// A message is not a batch.
    #[error("a message of the recording is not a batch: {0}")]
    Decode(#[from] prost::DecodeError),
}

/// Appends `batch` to a recording.
pub fn write(to: &mut impl Write, batch: &Batch) -> io::Result<()> {
    to.write_all(&batch.encode_length_delimited_to_vec())
}

/// Reads the batches of a recording in order, and ends after the first error.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    failed: bool,
}

impl<R: Read> Reader<R> {
    /// A reader of `from`, which should be buffered.
    #[must_use]
    pub fn new(from: R) -> Self {
        Self {
            from,
            failed: false,
        }
    }

    /// The length of the next message, or `None` at the end of the file.
    fn length(&mut self) -> Result<Option<u64>, RecordingError> {
        let mut length = 0_u64;
        for shift in (0..35).step_by(7) {
            let mut byte = [0_u8];
            if let Err(error) = self.from.read_exact(&mut byte) {
                return match error.kind() {
                    io::ErrorKind::UnexpectedEof if shift == 0 => Ok(None),
                    io::ErrorKind::UnexpectedEof => Err(RecordingError::Truncated),
                    _ => Err(error.into()),
                };
            }
            let [byte] = byte;
            length |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(Some(length));
            }
        }
        Err(RecordingError::TooLong)
    }

    fn read(&mut self) -> Result<Option<Batch>, RecordingError> {
        let Some(length) = self.length()? else {
            return Ok(None);
        };
        if length > MAX_MESSAGE_BYTES as u64 {
            return Err(RecordingError::TooLong);
        }
        // The buffer grows with the bytes that are there, not with the length that the file claims.
        let mut bytes = Vec::new();
        self.from.by_ref().take(length).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < length {
            return Err(RecordingError::Truncated);
        }
        Ok(Some(Batch::decode(bytes::Bytes::from(bytes))?))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Batch, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.read();
        self.failed = next.is_err();
        next.transpose()
    }
}
