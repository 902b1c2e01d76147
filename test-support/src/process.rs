//! Processes of a binary that a test runs: their kubeconfig, a log that nobody reads, and their end.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use tokio::net::unix::pipe::{self, Receiver};

use crate::eventually;

/// The byte that fills a pipe.
const FILLING: u8 = b' ';

/// A process that does not outlive its test.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    ///
    /// # Panics
    /// If there is no such binary.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("the binary runs"))
    }

    /// Tells it to end, as the kubelet does.
    ///
    /// # Panics
    /// If it has ended.
    pub fn terminate(&self) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// How it ended; `None` while it runs.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("the state of the process")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn ended(&mut self) -> ExitStatus {
        eventually("the end", async || self.exit()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A kubeconfig for an API server at `server` that speaks plain HTTP. The client reads the certificates in the file `ca` all
/// the same: without such a file, it reads those of the system, which may have none.
#[must_use]
pub fn kubeconfig(server: SocketAddr, ca: &Path) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: test\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n\
         users: [{{name: test, user: {{}}}}]\n\
         clusters: [{{name: test, cluster: {{server: 'http://{server}', certificate-authority: '{}'}}}}]\n",
        ca.display()
    )
}

/// The end of a full pipe that nobody reads.
#[derive(Debug)]
pub struct Unread(Receiver);

impl Unread {
    /// Whether nobody has written to the pipe since it was full. The process that has the other end has ended.
    ///
    /// # Panics
    /// If the pipe cannot be read.
    pub async fn is_untouched(self) -> bool {
        self.0.readable().await.expect("a full pipe");
        let mut bytes = [0; 4096];
        loop {
            match self.0.try_read(&mut bytes) {
                Ok(0) => return true,
                Ok(read) if bytes[..read].iter().any(|byte| *byte != FILLING) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => panic!("it gives no bytes: {error}"),
            }
        }
    }
}

/// A pipe for the output of a process that has no room left, as the log of a container whose runtime hangs. Whoever writes
/// to it waits for as long as the test keeps the other end.
///
/// # Panics
/// If there are no more pipes.
pub async fn full_pipe() -> (OwnedFd, Unread) {
    let (sender, receiver) = pipe::pipe().expect("a pipe");
    loop {
        sender.writable().await.expect("a pipe with a reader");
        // Whole pages leave no room between them, not even for a short line.
        match sender.try_write(&[FILLING; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("it takes no bytes: {error}"),
        }
    }
    let sender = sender.into_blocking_fd().expect("a pipe that blocks");
    (sender, Unread(receiver))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_pipe_to_which_somebody_wrote_is_not_untouched() {
        let (_sender, unread) = full_pipe().await;
        assert!(unread.is_untouched().await);
        let (sender, receiver) = pipe::pipe().expect("a pipe");
        let mut file = File::from(sender.into_blocking_fd().expect("a pipe that blocks"));
        file.write_all(b"  line").expect("room");
        assert!(!Unread(receiver).is_untouched().await);
    }
}
