//! The kernel's messages about devices, as they come.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt};

use crate::Errno;
use crate::kmd::{Bell, Event, EventSource};
use crate::uevent;

/// Multicast group of the kernel's own messages; what udevd makes of them goes to another.
const KERNEL_GROUP: u32 = 1;
/// Port of the kernel; no program can have it.
const KERNEL_PORT: u32 = 0;
/// Longer than any message of the kernel, which are of 2 KiB and the name of the device.
const MESSAGE_BYTES: usize = 8192;
/// Room for messages that nobody has fetched yet. The system may give less.
const QUEUE_BYTES: usize = 1 << 20;
/// More messages than that room holds: who has read so many that say nothing reads new ones, of which there may be no end.
const QUEUED_MESSAGES: u32 = 4096;

/// Events of the cards of the running kernel.
#[derive(Debug)]
pub(crate) struct KernelEvents {
    socket: Arc<OwnedFd>,
    message: Box<[u8; MESSAGE_BYTES]>,
}

impl KernelEvents {
    /// Listens from now on. In a network namespace of a user without privileges nothing is ever heard.
    pub(crate) fn listen() -> Result<Self, Errno> {
        Self::listen_to(KERNEL_GROUP)
    }

    fn listen_to(group: u32) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(KOBJECT_UEVENT))?;
        // Only a wish: with less, `ENOBUFS` comes sooner.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES);
        bind(&socket, &SocketAddrNetlink::new(0, group))?;
        Ok(Self { socket: Arc::new(socket), message: Box::new([0; MESSAGE_BYTES]) })
    }

    /// The event of the next message that is there; `None` when that has none.
    fn take(&mut self) -> Result<Option<Event>, Errno> {
        let (_, len, sender) = recvfrom(&*self.socket, &mut self.message[..], RecvFlags::TRUNC)?;
        let port =
            sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).map(|sender| sender.pid());
        // One that did not fit is none of the kernel's.
        Ok(self.message.get(..len).and_then(|message| event_from(port, message)))
    }
}

/// The event in a message; messages of programs have none.
fn event_from(port: Option<u32>, message: &[u8]) -> Option<Event> {
    if port == Some(KERNEL_PORT) { uevent::parse(message) } else { None }
}

impl EventSource for KernelEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        let began = Instant::now();
        let mut others = 0;
        loop {
            // What is there already is fetched even when there is no time to wait.
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

    fn bell(&self) -> Option<Arc<dyn Bell>> {
        Some(Arc::new(Readable(Arc::clone(&self.socket))))
    }
}

/// Waits until there is a message, up to `limit`; a signal ends it, too.
fn readable(socket: &OwnedFd, limit: Duration) -> Result<(), Errno> {
    // A limit beyond the kernel's is none.
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The socket, for those who wait and do not fetch.
#[derive(Debug)]
struct Readable(Arc<OwnedFd>);

impl Bell for Readable {
    fn wait(&self, limit: Duration) {
        if readable(&self.0, limit).is_err() {
            // Fetching tells what is wrong; who waits in a loop must not spin until then.
            thread::sleep(limit);
        }
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr)] // why a test could not be made
mod tests {
    use rustix::net::{SendFlags, getsockname, sendto};

    use super::*;
    use crate::kmd::EventKind;

    const REMOVED: &[u8] = b"remove@/devices/pci0000:00/0000:01:00.0/accel/accel0\0SUBSYSTEM=accel\0";

    #[test]
    fn only_the_kernel_is_believed() {
        let removed = Event { node: "accel0".to_owned(), kind: EventKind::Removed };
        assert_eq!(event_from(Some(0), REMOVED), Some(removed));
        assert_eq!(event_from(Some(4711), REMOVED), None);
        assert_eq!(event_from(None, REMOVED), None);
    }

    /// A group that nobody else listens to, so that tests disturb no one.
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

    /// A listener to a group, and who sends to that; says why there cannot be any.
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
    fn waits_end_in_time_whatever_others_send() {
        let Some((mut events, mut sender)) = pair(0) else { return };
        // To no group, but to this listener alone.
        sender.to = SocketAddrNetlink::try_from(getsockname(&*events.socket).unwrap()).unwrap();
        let bell = events.bell().unwrap();
        assert_eq!(events.next(Duration::ZERO), Ok(None));
        assert_eq!(events.next(Duration::from_millis(1)), Ok(None));
        bell.wait(Duration::from_millis(1));
        if let Err(errno) = sender.send(REMOVED) {
            return eprintln!("skipped: this process may not send there: {errno}");
        }
        bell.wait(Duration::MAX);
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
    fn lost_messages_are_told() {
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
