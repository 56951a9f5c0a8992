//! The kernel's messages about devices, in order of arrival.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt};

use crate::Errno;
use crate::kmd::{Event, EventSource, Readiness};

/// Multicast group of the kernel's own messages; udevd sends its messages to another group.
const KERNEL_GROUP: u32 = 1;
/// Port of the kernel, which no program can have.
const KERNEL_PORT: u32 = 0;
/// Buffer size, larger than any message of the kernel, which has 2 KiB and the name of the device.
const MESSAGE_BYTES: usize = 8192;
/// Size of the queue for unfetched messages. The system may allocate less.
const QUEUE_BYTES: usize = 1 << 20;
/// Maximum number of messages without an event that are fetched at a time. The queue contains fewer, so later
/// messages are new, and may have no end.
const QUEUED_MESSAGES: u32 = 4096;

/// Events of the cards of the running kernel.
#[derive(Debug)]
pub(crate) struct KernelEvents {
    socket: Arc<OwnedFd>,
    readiness: Arc<SocketReadiness>,
    message: Box<[u8; MESSAGE_BYTES]>,
}

impl KernelEvents {
    /// Starts to listen. In a network namespace of an unprivileged user, no message arrives.
    pub(crate) fn listen() -> Result<Self, Errno> {
        Self::listen_to(KERNEL_GROUP)
    }

    fn listen_to(group: u32) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(KOBJECT_UEVENT))?;
        // Optional: with a smaller buffer, `ENOBUFS` occurs earlier.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES);
        bind(&socket, &SocketAddrNetlink::new(0, group))?;
        let socket = Arc::new(socket);
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let readiness = Arc::new(SocketReadiness { socket: Arc::clone(&socket), wakes });
        Ok(Self { socket, readiness, message: Box::new([0; MESSAGE_BYTES]) })
    }

    /// Returns the event of the next available message; `None` if the message has no event.
    fn take(&mut self) -> Result<Option<Event>, Errno> {
        let (_, len, sender) = recvfrom(&*self.socket, &mut self.message[..], RecvFlags::TRUNC)?;
        let port =
            sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).map(|sender| sender.pid());
        // A longer message is not from the kernel.
        Ok(self.message.get(..len).and_then(|message| event_from(port, message)))
    }
}

/// Returns the event in a message; messages from programs have none.
fn event_from(port: Option<u32>, message: &[u8]) -> Option<Event> {
    if port == Some(KERNEL_PORT) { Event::parse(message) } else { None }
}

impl EventSource for KernelEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        let began = Instant::now();
        let mut others = 0;
        loop {
            // Fetches available data even with a time limit of 0.
            match self.take() {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) | Err(Errno::INTR) => {
                    others += 1;
                    if others > QUEUED_MESSAGES && began.elapsed() > limit {
                        return Ok(None);
                    }
                }
                Err(Errno::AGAIN) => {
                    let left = limit.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    readable(&self.socket, left)?;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    fn readiness(&self) -> Arc<dyn Readiness> {
        Arc::clone(&self.readiness) as Arc<dyn Readiness>
    }
}

/// Waits for a message, up to `limit`; a signal also ends the wait.
fn readable(socket: &OwnedFd, limit: Duration) -> Result<(), Errno> {
    poll_for(&mut [PollFd::new(socket, PollFlags::IN)], Some(limit))
}

fn poll_for(files: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<(), Errno> {
    // The kernel cannot represent the limit, so the wait is unlimited.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(files, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Pause of a thread that cannot wait for the socket. A later fetch reports the error, and the pause prevents a busy
/// loop until then.
const BROKEN_PAUSE: Duration = Duration::from_millis(50);

/// The socket, for threads that wait and do not fetch, and a counter that wakes them.
#[derive(Debug)]
struct SocketReadiness {
    socket: Arc<OwnedFd>,
    wakes: OwnedFd,
}

impl Readiness for SocketReadiness {
    fn wait(&self, limit: Option<Duration>) {
        let mut files = [PollFd::new(&*self.socket, PollFlags::IN), PollFd::new(&self.wakes, PollFlags::IN)];
        if poll_for(&mut files, limit).is_err() {
            thread::sleep(limit.map_or(BROKEN_PAUSE, |limit| limit.min(BROKEN_PAUSE)));
        }
        if !files[1].revents().is_empty() {
            // Takes all wakes together. Another thread may have taken them already.
            let _ = read(&self.wakes, &mut [0_u8; 8]);
        }
    }

    fn wake(&self) {
        // Fails only at the maximum of the counter, which wakes the thread too.
        let _ = write(&self.wakes, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr)] // reports why a test is skipped
mod tests {
    use rustix::net::{SendFlags, getsockname, sendto};

    use super::*;
    use crate::kmd::EventKind;

    const REMOVED: &[u8] = b"remove@/devices/pci0000:00/0000:01:00.0/accel/accel0\0SUBSYSTEM=accel\0";

    #[test]
    fn messages_of_other_senders_are_ignored() {
        let removed = Event { node: "accel0".to_owned(), kind: EventKind::Removed };
        assert_eq!(event_from(Some(0), REMOVED), Some(removed));
        assert_eq!(event_from(Some(4711), REMOVED), None);
        assert_eq!(event_from(None, REMOVED), None);
    }

    /// A group without other listeners, so that tests disturb no program.
    const TEST_GROUP: u32 = 1 << 21;

    /// A program that sends to others.
    struct Sender {
        socket: OwnedFd,
        to: SocketAddrNetlink,
    }

    impl Sender {
        fn send(&self, message: &[u8]) -> Result<usize, Errno> {
            sendto(&self.socket, message, SendFlags::empty(), &self.to)
        }
    }

    /// A listener to a group and a sender to it, or the reason why there cannot be any.
    fn pair(group: u32) -> Option<(KernelEvents, Sender)> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(KOBJECT_UEVENT),
        );
        let pair = KernelEvents::listen_to(group).and_then(|events| Ok((events, socket?)));
        match pair {
            Ok((events, socket)) => Some((events, Sender { socket, to: SocketAddrNetlink::new(0, group) })),
            Err(errno) => {
                eprintln!("skipped: this system opens no netlink sockets: {errno}");
                None
            }
        }
    }

    #[test]
    fn wait_beside_other_messages_ends_in_time() {
        let Some((mut events, mut sender)) = pair(0) else { return };
        // The message is sent to this listener only, not to a group.
        sender.to = SocketAddrNetlink::try_from(getsockname(&*events.socket).unwrap()).unwrap();
        let readiness = events.readiness();
        assert_eq!(events.next(Duration::ZERO), Ok(None));
        assert_eq!(events.next(Duration::from_millis(1)), Ok(None));
        readiness.wait(Some(Duration::from_millis(1)));
        if let Err(errno) = sender.send(REMOVED) {
            return eprintln!("skipped: this process may not send there: {errno}");
        }
        readiness.wait(None);
        assert_eq!(sender.send(&[b'@'; MESSAGE_BYTES + 1]), Ok(MESSAGE_BYTES + 1));
        assert_eq!(events.take(), Ok(None));
        assert_eq!(events.take(), Ok(None));
        assert_eq!(events.take(), Err(Errno::AGAIN));
        for _ in 0..20 {
            assert_eq!(sender.send(REMOVED), Ok(REMOVED.len()));
        }
        assert_eq!(events.next(Duration::ZERO), Ok(None));
        assert_eq!(events.take(), Err(Errno::AGAIN), "all that was there was read");
    }

    #[test]
    fn wake_before_a_wait_ends_it_too() {
        let Some((events, _sender)) = pair(0) else { return };
        let readiness = events.readiness();
        readiness.wake();
        readiness.wake();
        readiness.wait(None);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| readiness.wait(None));
            readiness.wake();
            waiting.join().unwrap();
        });
    }

    #[test]
    fn lost_messages_are_reported() {
        let Some((mut events, sender)) = pair(TEST_GROUP) else { return };
        sockopt::set_socket_recv_buffer_size(&*events.socket, 0).unwrap();
        for _ in 0..100 {
            if let Err(errno) = sender.send(REMOVED) {
                return eprintln!("skipped: this process may not send there: {errno}");
            }
        }
        assert_eq!(events.next(Duration::ZERO), Err(Errno::NOBUFS));
    }
}
