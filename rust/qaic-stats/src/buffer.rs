//! The stats buffer of one inference, which stays in memory and is checked once.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::decode::check;
use crate::decode::columns::columns;
use crate::decode::layout::{DecodeOptions, ProgramOperations, decode};
use crate::decode::record::Kind;
use crate::error::StatsError;
use crate::model::{Run, StatsModel};

/// Interval of releases; about ten megabytes of a file are read in this time.
const LET_GO_PERIOD: Duration = Duration::from_millis(5);

/// Immutable bytes with a stable address.
pub trait FrozenBytes: From<Vec<u8>> + Send + Sync {
    /// Returns all bytes.
    fn bytes(&self) -> &[u8];

    /// Returns true if the bytes are part of a large mapped file, which [`FrozenBytes::let_go`] can release.
    fn is_let_go(&self) -> bool;

    /// Marks `part` of the bytes as not needed soon.
    fn let_go(&self, part: &[u8]);
}

/// Location of the records of a section.
#[derive(Debug)]
pub struct Place<B> {
    /// Owner of the bytes.
    pub owner: Arc<B>,
    /// Range of the records' bytes.
    pub range: Range<usize>,
    /// Distance between two records in bytes.
    pub stride: usize,
}

impl<B: FrozenBytes> Place<B> {
    fn copied(records: Vec<u8>, stride: usize) -> Self {
        let range = 0..records.len();
        Self { owner: Arc::new(records.into()), range, stride }
    }

    /// Number of records.
    pub fn count(&self) -> usize {
        self.range.len().checked_div(self.stride).unwrap_or(self.range.len())
    }

    fn bytes(&self) -> &[u8] {
        self.owner.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

/// The records of one inference.
#[derive(Debug)]
pub struct StatsBuffer<B> {
    /// Facts about the inference.
    pub run: Run,
    places: Vec<(Kind, Place<B>)>,
    warnings: Vec<String>,
    program: Option<ProgramOperations>,
    any_program: bool,
    // The buffer and the requested layout; `None` if the records were passed one by one.
    whole: Option<(Arc<B>, Option<String>)>,
    checked: OnceLock<Result<Vec<String>, StatsError>>,
}

impl<B: FrozenBytes> StatsBuffer<B> {
    /// Opens the records in `bytes`. Checks only a few records, regardless of their number.
    ///
    /// # Errors
    ///
    /// The first defect among those.
    pub fn open(
        bytes: B,
        program: Option<ProgramOperations>,
        layout: Option<String>,
        any_program: bool,
    ) -> Result<Self, StatsError> {
        let owner = Arc::new(bytes);
        let all = owner.bytes();
        let options = DecodeOptions { any_program, records: false };
        let model = decode(all, program.as_ref(), layout.as_deref(), options)?;
        let place = |kind: Kind| {
            let (records, stride) = model.section(kind)?;
            let start = records.as_ptr().addr().checked_sub(all.as_ptr().addr());
            let range = start.and_then(|start| Some(start..start.checked_add(records.len())?));
            Some((
                kind,
                match range.filter(|range| range.end <= all.len()) {
                    Some(range) => Place { owner: Arc::clone(&owner), range, stride },
                    // Sections without records have no position in the buffer.
                    None => Place::copied(records.to_vec(), stride),
                },
            ))
        };
        Ok(Self {
            run: model.run,
            places: Kind::ALL.into_iter().filter_map(place).collect(),
            warnings: model.warnings.clone(),
            program,
            any_program,
            whole: Some((Arc::clone(&owner), layout)),
            checked: OnceLock::new(),
        })
    }

    /// Creates the records of an inference from sections: kind, bytes, and distance between two records.
    ///
    /// # Errors
    ///
    /// The first defect of cores and threads.
    pub fn of_sections(
        run: Run,
        sections: Vec<(Kind, Vec<u8>, usize)>,
        program: Option<ProgramOperations>,
        any_program: bool,
    ) -> Result<Self, StatsError> {
        let places =
            sections.into_iter().map(|(kind, records, stride)| (kind, Place::copied(records, stride)));
        let made = Self {
            run,
            places: places.collect(),
            warnings: Vec::new(),
            program,
            any_program,
            whole: None,
            checked: OnceLock::new(),
        };
        check::structure(&made.model())?;
        Ok(made)
    }

    /// Returns the records. Records of operations are unchecked before [`StatsBuffer::check`], but safe to read.
    pub fn model(&self) -> StatsModel<'_> {
        let mut model = StatsModel::new(self.run);
        for (kind, place) in &self.places {
            model.set(*kind, place.bytes(), place.stride);
        }
        model.warnings.clone_from(&self.warnings);
        model
    }

    /// Returns the location of a section's records; `None` if the device wrote none.
    pub fn place(&self, kind: Kind) -> Option<&Place<B>> {
        self.places.iter().find(|(known, _)| *known == kind).map(|(_, place)| place)
    }

    /// Returns the columns `names` of the records `range`; `None` if a name is not a field.
    pub fn columns(&self, kind: Kind, names: &[&str], range: Range<usize>) -> Option<Vec<Vec<u8>>> {
        let place = self.place(kind);
        let (bytes, stride) =
            place.map_or((&[][..], kind.record_bytes()), |place| (place.bytes(), place.stride));
        columns(kind, bytes, stride, names, range)
    }

    /// Marks these bytes as not needed soon, if they are part of a mapped file.
    pub fn let_go(&self, part: &[u8]) {
        if let Some((owner, _)) = &self.whole {
            owner.let_go(part);
        }
    }

    /// Marks the records `range` as not needed soon.
    pub fn let_go_records(&self, kind: Kind, range: Range<usize>) {
        let Some(place) = self.place(kind) else { return };
        let bytes = place.bytes();
        let end = range.end.saturating_mul(place.stride).min(bytes.len());
        let start = range.start.saturating_mul(place.stride).min(end);
        self.let_go(bytes.get(start..end).unwrap_or_default());
    }

    /// Returns the warnings about the buffer; complete after [`StatsBuffer::check`].
    pub fn warnings(&self) -> &[String] {
        match self.checked.get() {
            Some(Ok(all)) => all,
            _ => &self.warnings,
        }
    }

    /// Reads and checks every record. Later calls return the same result. Records of a large mapped file do not stay
    /// in memory.
    ///
    /// # Errors
    ///
    /// The first defect.
    pub fn check(&self) -> Result<(), &StatsError> {
        let checked = self.checked.get_or_init(|| match &self.whole {
            Some((owner, layout)) if owner.is_let_go() => {
                thread::scope(|scope| {
                    let (done, ended) = channel();
                    let reader = scope.spawn(move || {
                        let result = self.read_whole(owner, layout.as_deref());
                        // The receiver exists until the end of the scope, which waits for this thread.
                        let _ = done.send(());
                        result
                    });
                    while ended.recv_timeout(LET_GO_PERIOD) == Err(RecvTimeoutError::Timeout) {
                        owner.let_go(owner.bytes());
                    }
                    owner.let_go(owner.bytes());
                    reader.join().unwrap_or_else(|panic| resume_unwind(panic))
                })
            }
            Some((owner, layout)) => self.read_whole(owner, layout.as_deref()),
            None => {
                let program = self.program.as_ref().filter(|_| !self.any_program);
                check::records(&self.model(), program.map(|program| &*program.ops))
            }
        });
        checked.as_ref().map(|_| ())
    }

    fn read_whole(&self, owner: &B, layout: Option<&str>) -> Result<Vec<String>, StatsError> {
        let options = DecodeOptions { any_program: self.any_program, records: true };
        Ok(decode(owner.bytes(), self.program.as_ref(), layout, options)?.warnings)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::decode::descriptor::fingerprint;
    use crate::decode::oqstats::encode_to_vec;
    use crate::decode::record::{Core, Op, Thread};

    /// Bytes that count how often they were released.
    #[derive(Debug, Default)]
    struct Counting {
        bytes: Vec<u8>,
        is_large: bool,
        let_go: AtomicUsize,
    }

    impl From<Vec<u8>> for Counting {
        fn from(bytes: Vec<u8>) -> Self {
            Self { bytes, ..Self::default() }
        }
    }

    impl FrozenBytes for Counting {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn is_let_go(&self) -> bool {
            self.is_large
        }

        fn let_go(&self, part: &[u8]) {
            self.let_go.fetch_add(part.len(), Ordering::Relaxed);
        }
    }

    fn model(first_op: u32) -> StatsModel<'static> {
        let run = Run { cores: 1, threads_per_core: 1, ucycle_hz: 1, batch_size: 1, ..Run::default() };
        let mut model = StatsModel::new(run);
        model.set_records([Core { end_u: 100, ..Core::default() }]);
        model.set_records([Thread { end_u: 100, first_op, op_count: 4, ..Thread::default() }]);
        model.set_records((0..4).map(|oc| Op { oc, start_u: u64::from(oc), dur_u: 1, ..Op::default() }));
        model
    }

    fn encoded() -> Vec<u8> {
        encode_to_vec(&model(0), fingerprint(b"")).unwrap()
    }

    fn opened(bytes: Vec<u8>, is_large: bool) -> Result<StatsBuffer<Counting>, StatsError> {
        StatsBuffer::open(Counting { bytes, is_large, ..Counting::default() }, None, None, false)
    }

    #[test]
    fn records_lie_in_the_bytes_that_were_opened() {
        let buffer = opened(encoded(), false).unwrap();
        let place = buffer.place(Kind::Op).unwrap();
        assert_eq!((place.count(), place.owner.bytes()), (4, &encoded()[..]));
        assert_eq!(buffer.model().records::<Op>().len(), 4);
        let columns = buffer.columns(Kind::Op, &["oc"], 1..3).unwrap();
        assert_eq!(columns, [[1_u32, 2].map(u32::to_le_bytes).concat()]);
        assert!(buffer.columns(Kind::Op, &["none"], 0..1).is_none());
        assert_eq!(buffer.check(), Ok(()));
    }

    #[test]
    fn a_section_without_records_has_empty_columns() {
        let buffer = opened(encoded(), false).unwrap();
        let absent = Kind::ALL.into_iter().find(|kind| buffer.place(*kind).is_none()).unwrap();
        let field = absent.fields().first().unwrap().name;
        assert_eq!(buffer.columns(absent, &[field], 0..9).unwrap(), [Vec::<u8>::new()]);
    }

    #[test]
    fn a_defect_of_an_operation_shows_when_it_is_checked() {
        let whole = encoded();
        let buffer = opened(whole.clone(), false).unwrap();
        let place = buffer.place(Kind::Op).unwrap();
        let mut damaged = whole;
        damaged[place.range.start + 9] ^= 0x80;
        for is_large in [false, true] {
            let buffer = opened(damaged.clone(), is_large).unwrap();
            let found = buffer.check().unwrap_err().clone();
            assert_eq!(buffer.check(), Err(&found), "the answer stays");
        }
    }

    #[test]
    fn a_large_file_is_let_go_of_while_it_is_checked() {
        let large = opened(encoded(), true).unwrap();
        assert_eq!(large.check(), Ok(()));
        let count = |buffer: &StatsBuffer<Counting>| {
            buffer.place(Kind::Op).unwrap().owner.let_go.load(Ordering::Relaxed)
        };
        assert!(count(&large) >= encoded().len());
        let small = opened(encoded(), false).unwrap();
        assert_eq!((small.check(), count(&small)), (Ok(()), 0));
    }

    #[test]
    fn records_beyond_the_last_are_not_let_go_of() {
        let buffer = opened(encoded(), true).unwrap();
        let place = buffer.place(Kind::Op).unwrap();
        buffer.let_go_records(Kind::Op, 2..100);
        assert_eq!(place.owner.let_go.load(Ordering::Relaxed), 2 * place.stride);
        buffer.let_go_records(Kind::Op, usize::MAX..usize::MAX);
        assert_eq!(place.owner.let_go.load(Ordering::Relaxed), 2 * place.stride);
    }

    #[test]
    fn sections_are_checked_as_a_buffer_is() {
        let of_sections = |first_op| {
            let model = model(first_op);
            let sections = [Kind::Core, Kind::Thread, Kind::Op].map(|kind| {
                let (records, stride) = model.section(kind).unwrap();
                (kind, records.to_vec(), stride)
            });
            StatsBuffer::<Counting>::of_sections(model.run, sections.into(), None, false)
        };
        let buffer = of_sections(0).unwrap();
        assert_eq!((buffer.check(), buffer.model().records::<Op>().len()), (Ok(()), 4));
        assert_eq!(of_sections(1).unwrap_err().code(), "stats.op_ranges");
    }
}
