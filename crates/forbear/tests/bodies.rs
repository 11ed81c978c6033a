//! Where bodies go, and that none takes another's place.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use forbear::bodies::{Bodies, BodyDir, BodyError, Place, Sink, Stored};
use forbear_store::queue::{
    Batch, BodyFile, Ending, Finish, InputEnd, InputPosition, Job, JobOptions, NewItem, OutputTarget,
    Request, Seq,
};

const KEY: [u8; 32] = [7; 32];

fn bodies(dir: &Path) -> Bodies {
    Bodies::Dir(BodyDir::open(dir, &KEY).expect("a directory"))
}

async fn store(mut sink: Sink, pieces: &[&[u8]]) -> Stored {
    for piece in pieces {
        sink.write(Bytes::copy_from_slice(piece)).await.expect("room");
    }
    sink.finish().await.expect("stored")
}

fn file(stored: Stored) -> (BodyFile, String) {
    match stored.place {
        Place::File { file, shown } => (file, shown),
        other => panic!("no file: {other:?}"),
    }
}

/// What the queue does, but for the sync.
fn settle(file: &BodyFile) {
    fs::rename(&file.aside, &file.path).expect("both directories exist");
}

/// Every file below `dir`, from it, but for the mark of who came first.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).expect("a directory") {
            let path: PathBuf = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if !path.ends_with(".tmp/first") {
                found.insert(path.strip_prefix(dir).expect("below").to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[tokio::test]
async fn v4_a_body_in_memory_is_all_its_pieces() {
    for (pieces, whole) in [
        (&[][..], &b""[..]),
        (&[&b""[..]], b""),
        (&[b"one"], b"one"),
        (&[b"one", b"", b"two"], b"onetwo"),
        (&[b"", b"one", b"two", b"three"], b"onetwothree"),
    ] {
        let stored = store(Bodies::Inline.sink(Seq(1), None, 100), pieces).await;
        assert_eq!(stored.bytes, whole.len() as u64);
        assert!(matches!(&stored.place, Place::Memory(bytes) if bytes[..] == *whole), "{stored:?}");
        let stored = store(Bodies::None.sink(Seq(1), None, 100), pieces).await;
        assert_eq!(stored.bytes, whole.len() as u64);
        assert!(matches!(stored.place, Place::Nowhere));
    }
}

#[tokio::test]
async fn k4_a_body_over_the_limit_names_both_sizes() {
    let dir = tempfile::tempdir().expect("a directory");
    for bodies in [Bodies::Inline, Bodies::None, bodies(dir.path())] {
        let mut sink = bodies.sink(Seq(1), None, 5);
        sink.write(Bytes::from_static(b"12345")).await.expect("just fits");
        let error = sink.write(Bytes::from_static(b"6")).await.expect_err("one too many");
        assert!(matches!(error, BodyError::TooLarge { limit: 5, size: 6 }));
        assert_eq!(error.to_string(), "the body is too large: 6 bytes or more, the limit is 5");
    }
    assert_eq!(files(dir.path()), BTreeSet::new());
}

#[tokio::test]
async fn j1_a_body_grows_aside_and_has_a_place_by_its_id() {
    let dir = tempfile::tempdir().expect("a directory");
    let bodies = bodies(dir.path());
    let (file, shown) = file(store(bodies.sink(Seq(3), None, 100), &[b"one", b"two"]).await);
    assert!(file.aside.starts_with(dir.path().join(".tmp")) && !file.path.exists());
    settle(&file);
    assert_eq!(fs::read(&shown).expect("the body"), b"onetwo");
    let name: Vec<_> = file.path.strip_prefix(dir.path()).expect("below").iter().collect();
    assert_eq!((name.len(), name[2].to_str()), (3, Some("3")));
    assert!(
        name[..2].iter().all(|n| n.len() == 2 && n.to_string_lossy().bytes().all(|b| b.is_ascii_hexdigit()))
    );
    assert!(
        matches!(store(bodies.sink(Seq(4), None, 100), &[b""]).await.place, Place::Nowhere),
        "nothing is no file"
    );
}

#[tokio::test]
async fn k4_a_large_body_is_written_in_pieces() {
    let dir = tempfile::tempdir().expect("a directory");
    let piece = vec![b'x'; 100_000];
    let pieces: Vec<&[u8]> = (0..11).map(|_| &piece[..]).collect();
    let (file, _) = file(store(bodies(dir.path()).sink(Seq(1), None, 2_000_000), &pieces).await);
    assert_eq!(fs::read(&file.aside).expect("the body"), vec![b'x'; 1_100_000]);
}

#[tokio::test]
async fn j1_ids_make_safe_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let bodies = bodies(dir.path());
    let long = "x".repeat(1000);
    for (seq, (id, name)) in [
        ("a0_-.B", "a0_-.B"),
        (r#""7""#, "7"),
        ("", "%"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("a b%~\\:\0", "a%20b%25%7E%5C%3A%00"),
        ("ü", "%C3%BC"),
        (long.as_str(), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let (file, _) = file(store(bodies.sink(Seq(seq as u64), Some(id), 9), &[b"x"]).await);
        settle(&file);
        let given = file.path.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(given.len() < 200 && (name.is_empty() || given == name), "{id}: {given}");
        assert_eq!(file.path.strip_prefix(dir.path()).expect("below").iter().count(), 3);
    }
    assert_eq!(files(dir.path()).len(), 9);
}

/// Whoever comes second, at whatever moment, has a name of its own.
#[tokio::test]
async fn j1_equal_ids_do_not_take_each_others_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let bodies = bodies(dir.path());
    let sink = |seq| bodies.sink(Seq(seq), Some("same"), 9);
    let (first, _) = file(store(sink(1), &[b"1"]).await);
    let (second, _) = file(store(sink(2), &[b"2"]).await);
    settle(&first);
    let (third, _) = file(store(sink(3), &[b"3"]).await);
    settle(&third);
    settle(&second);
    for (file, body) in [(first, b"1"), (second, b"2"), (third, b"3")] {
        assert_eq!(fs::read(&file.path).expect("a body"), body);
    }
    // The same item once more, as after a crash before it was acknowledged: over its own file at most.
    let (again, _) = file(store(sink(2), &[b"2"]).await);
    settle(&again);
    assert_eq!(files(dir.path()).len(), 3);
}

#[tokio::test]
async fn j1_two_jobs_may_share_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = bodies(dir.path());
    let (first, _) = file(store(one.sink(Seq(1), None, 9), &[b"1"]).await);
    let other = Bodies::Dir(BodyDir::open(dir.path(), &[8; 32]).expect("a directory"));
    assert!(first.aside.exists(), "the other job leaves it alone");
    let (second, shown) = file(store(other.sink(Seq(1), None, 9), &[b"2"]).await);
    settle(&second);
    settle(&first);
    assert_eq!(fs::read(&first.path).expect("a body"), b"1");
    assert_eq!(fs::read(&shown).expect("a body"), b"2");
    // Who was first is remembered.
    let (third, _) = file(store(bodies(dir.path()).sink(Seq(2), None, 9), &[b"3"]).await);
    assert_eq!(third.path.file_name().and_then(|n| n.to_str()), Some("2"));
}

#[tokio::test]
async fn j1_what_was_not_finished_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let kept = bodies(dir.path());
    let mut sink = kept.sink(Seq(1), None, 1 << 20);
    sink.write(Bytes::from(vec![b'x'; 300_000])).await.expect("written");
    assert_eq!(files(dir.path()).len(), 1, "it grows aside");
    drop(sink);
    assert_eq!(files(dir.path()).len(), 0);
    // And what a killed run has left is gone at the next start.
    let (file, _) = file(store(kept.sink(Seq(1), None, 9), &[b"x"]).await);
    assert!(file.aside.exists());
    drop(bodies(dir.path()));
    assert_eq!(files(dir.path()).len(), 0);
}

#[tokio::test]
async fn j4_a_directory_that_cannot_be_made_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "").expect("written");
    let error = BodyDir::open(dir.path().join("file"), &KEY).expect_err("a file is in the way");
    assert!(error.to_string().starts_with("cannot write "), "{error}");
}

/// With the real queue: in place, and named in the record, once the item is acknowledged.
#[tokio::test]
async fn j1_the_queue_puts_a_body_in_its_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = JobOptions::new(OutputTarget::File(dir.path().join("out")));
    let job = Job::open(dir.path().join("job"), options, Arc::new(|_| ())).expect("a job");
    let bodies = Bodies::Dir(BodyDir::open(dir.path().join("b"), &job.account_key()).expect("a directory"));
    let request = Request::get("http://h/");
    let item = NewItem { seq: Seq(1), id: None, lane: "h".into(), request, not_before: None };
    let position = InputPosition { offset: 1, line: 1 };
    job.import(Batch { items: vec![item], bad: vec![], position, end: InputEnd::Reached }).expect("imported");
    job.flush().await.expect("saved");
    let lane = job.ready_lanes(None, 1).await.expect("lanes").remove(0);
    let item = job.claim(lane.id, 1).await.expect("claimed").remove(0);
    let (body, shown) = file(store(bodies.sink(item.lease.seq(), None, 9), &[b"hello"]).await);
    let finish = Finish {
        lease: item.lease,
        ending: Ending::Done,
        record: br#"{"id":1,"outcome":"done"}"#.to_vec(),
        body: Some(body),
        counters: item.counters,
    };
    job.finish(finish).await.expect("finished");
    job.close().await.expect("closed");
    assert_eq!(fs::read(shown).expect("the body"), b"hello");
    assert_eq!(files(&dir.path().join("b")).len(), 1, "nothing is left aside");
}
