//! Names of errors as in `errno.h`.

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

/// Name of the error; `E` and the number for errors without a name.
pub(super) fn name(errno: Errno) -> String {
    let known = NAMES.iter().find(|(_, known)| *known == errno);
    known.map_or_else(|| format!("E{}", errno.raw_os_error()), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn errno_has_a_name_that_no_other_has() {
        let names: HashSet<_> = (1..4096).map(|number| name(Errno::from_raw_os_error(number))).collect();
        assert_eq!(names.len(), 4095);
        assert_eq!((name(Errno::AGAIN), name(Errno::from_raw_os_error(99))), ("EAGAIN".into(), "E99".into()));
    }
}
