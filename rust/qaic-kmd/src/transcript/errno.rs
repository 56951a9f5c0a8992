//! Names of errors, as `errno` has them.

use crate::Errno;

const NAMES: [(&str, Errno); 38] = [
    ("EPERM", Errno::PERM),
    ("ENOENT", Errno::NOENT),
    ("ESRCH", Errno::SRCH),
    ("EINTR", Errno::INTR),
    ("EIO", Errno::IO),
    ("ENXIO", Errno::NXIO),
    ("E2BIG", Errno::TOOBIG),
    ("EBADF", Errno::BADF),
    ("EAGAIN", Errno::AGAIN),
    ("ENOMEM", Errno::NOMEM),
    ("EACCES", Errno::ACCESS),
    ("EFAULT", Errno::FAULT),
    ("EBUSY", Errno::BUSY),
    ("EEXIST", Errno::EXIST),
    ("ENODEV", Errno::NODEV),
    ("ENOTDIR", Errno::NOTDIR),
    ("EINVAL", Errno::INVAL),
    ("ENFILE", Errno::NFILE),
    ("EMFILE", Errno::MFILE),
    ("ENOTTY", Errno::NOTTY),
    ("EFBIG", Errno::FBIG),
    ("ENOSPC", Errno::NOSPC),
    ("EROFS", Errno::ROFS),
    ("EPIPE", Errno::PIPE),
    ("EDOM", Errno::DOM),
    ("ERANGE", Errno::RANGE),
    ("ENOSYS", Errno::NOSYS),
    ("EPROTO", Errno::PROTO),
    ("EBADMSG", Errno::BADMSG),
    ("EOVERFLOW", Errno::OVERFLOW),
    ("EMSGSIZE", Errno::MSGSIZE),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("ENOBUFS", Errno::NOBUFS),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("EHOSTDOWN", Errno::HOSTDOWN),
    ("ECONNRESET", Errno::CONNRESET),
    ("ESTALE", Errno::STALE),
    ("ECANCELED", Errno::CANCELED),
];

/// Its name; those without one are `E` and the number.
pub(super) fn name(errno: Errno) -> String {
    let known = NAMES.iter().find(|(_, known)| *known == errno);
    known.map_or_else(|| format!("E{}", errno.raw_os_error()), |(name, _)| (*name).to_owned())
}

/// The error of this name.
pub(super) fn named(name: &str) -> Option<Errno> {
    if let Some((_, errno)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Some(*errno);
    }
    let number = name.strip_prefix('E')?.parse().ok()?;
    (1..4096).contains(&number).then(|| Errno::from_raw_os_error(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_of_every_name_round_trips() {
        for number in 1..4096 {
            let errno = Errno::from_raw_os_error(number);
            assert_eq!(named(&name(errno)), Some(errno), "{number}");
        }
        assert_eq!((name(Errno::AGAIN), name(Errno::from_raw_os_error(99))), ("EAGAIN".into(), "E99".into()));
        for text in ["", "E", "E0", "E4096", "E-1", "EWHAT", "11"] {
            assert_eq!(named(text), None, "{text}");
        }
    }
}
