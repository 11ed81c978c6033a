//! Inputs into jobs: all lines, once, also after a stop, a growth or a change.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use forbear::{
    client::Target,
    config::Settings,
    input::{ImportError, ImportEvent, Imported, Importer, Line, Source, parse_line},
};
use forbear_store::queue::{
    Batch, InputIdentity, InputPosition, Job, JobOptions, OutputTarget, Seq,
    inspect::{JobFile, Listed, State, Which},
};
use parking_lot::Mutex;
use proptest::prelude::*;

/// A job in a directory of its own.
struct Bench {
    dir: tempfile::TempDir,
    settings: Arc<Settings>,
    events: Arc<Mutex<Vec<ImportEvent>>>,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            dir: tempfile::tempdir().expect("a directory"),
            settings: Arc::new(Settings::default()),
            events: Arc::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, text: impl AsRef<[u8]>) -> Source {
        fs::write(self.path("in"), text).expect("written");
        Source::named(self.path("in"))
    }

    fn open(&self) -> Arc<Job> {
        let options = JobOptions::new(OutputTarget::File(self.path("out")));
        Arc::new(Job::open(self.path("job"), options, Arc::new(|_| ())).expect("a job"))
    }

    fn start(&self, job: &Arc<Job>, source: &Source) -> Result<Importer, ImportError> {
        let events = Arc::clone(&self.events);
        let tell = Arc::new(move |event| events.lock().push(event));
        let lane_of = |target: &Target, account: Option<&str>, endpoint: Option<&str>| {
            format!("{} {} {}", target.origin(), account.unwrap_or("-"), endpoint.unwrap_or("-")).into()
        };
        Importer::start(Arc::clone(job), source, Arc::clone(&self.settings), tell, lane_of)
    }

    /// One run that only imports. Gives how it ended.
    async fn import(&self, source: &Source) -> Result<Imported, String> {
        let job = self.open();
        let result = match self.start(&job, source) {
            Ok(importer) => importer.finished().await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        job.close().await.expect("closed");
        result
    }

    fn listed(&self) -> Vec<Listed> {
        JobFile::open(self.path("job")).and_then(|job| job.list(Which::All, Seq(0), 100_000)).expect("items")
    }

    /// Line and URL of each item, and the lines that are none.
    fn items(&self) -> (Vec<(u64, String)>, Vec<u64>) {
        let (mut items, mut bad) = (Vec::new(), Vec::new());
        for item in self.listed() {
            match item.request {
                Some(request) => items.push((item.seq.0, request.url)),
                None => bad.push(item.seq.0),
            }
        }
        (items, bad)
    }

    fn lanes(&self) -> Vec<String> {
        self.listed().into_iter().filter_map(|item| item.lane).collect()
    }

    fn output(&self) -> String {
        fs::read_to_string(self.path("out")).expect("the output")
    }
}

fn items(list: &[(u64, &str)]) -> Vec<(u64, String)> {
    list.iter().map(|(line, url)| (*line, (*url).to_owned())).collect()
}

#[tokio::test]
async fn j5_every_line_is_accounted_for() {
    let bench = Bench::new();
    let text = "\u{feff}http://a/1\r\n\n# a comment\nnonsense://a/no\n{\"url\":\"http://b/2\",\"id\":\"x\"}\nhttp://a:99999/\nhttp://a/3";
    assert_eq!(bench.import(&bench.write(text)).await, Ok(Imported::All));
    let (found, bad) = bench.items();
    assert_eq!(found, items(&[(1, "http://a/1"), (5, "http://b/2"), (7, "http://a/3")]));
    assert_eq!(bad, [4, 6]);
    let records: Vec<serde_json::Value> =
        bench.output().lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let field = |record: usize, name: &str| records[record][name].clone();
    assert_eq!(records.len(), 2);
    assert_eq!((field(0, "id"), field(0, "url")), (4.into(), "nonsense://a/no".into()));
    assert_eq!((field(0, "outcome"), field(0, "reason")), ("failed".into(), "bad input".into()));
    assert_eq!(field(0, "error"), "line 4: the scheme is not http or https; no other is fetched");
    assert_eq!((field(1, "id"), field(1, "url")), (6.into(), "http://a:99999/".into()));
    let told = bench.events.lock().clone();
    assert!(
        matches!(&told[..], [ImportEvent::BadLine { line: 4, .. }, ImportEvent::BadLine { line: 6, .. }]),
        "{told:?}"
    );
    let summary = JobFile::open(bench.path("job")).and_then(|job| job.summary()).expect("a summary");
    assert_eq!((summary.position.offset, summary.position.line), (text.len() as u64, 7));
}

#[tokio::test]
async fn s2_one_origin_is_one_lane_however_it_is_spelt() {
    let bench = Bench::new();
    let text = "http://h/1\nhttp://h/2\nHTTP://H:80/3\nhttp://h./4\nhttp://h?5\nhttp://h\nhttp://h/@user\nhttp://u:p@h/\nhttp://u:p@h/2\nhttp://h/last\n";
    assert_eq!(bench.import(&bench.write(text)).await, Ok(Imported::All));
    let lanes = bench.lanes();
    for (index, lane) in lanes.iter().enumerate() {
        if [7, 8].contains(&index) {
            assert!(lane.starts_with("http://h ~") && lane.ends_with(" -") && *lane == lanes[7], "{lane}");
        } else {
            assert_eq!(lane, "http://h - -", "{index}");
        }
    }
    assert_eq!(bench.items().0[6].1, "http://h/@user");
}

#[tokio::test]
async fn s1_account_and_endpoint_make_a_lane_of_their_own() {
    let mut bench = Bench::new();
    let file = bench.path("forbear.toml");
    fs::write(
        &file,
        "[hosts.\"h\"]\nheaders = { authorization = \"Bearer of-the-host\" }\n[[hosts.\"h\".endpoints]]\nname = \"search\"\nmatch = \"/s/**\"\n\
         [secrets]\nheaders = [\"x-key\"]\nquery = [\"app\"]\n",
    )
    .expect("written");
    let sources = forbear::config::Sources { config: Some(file), ..Default::default() };
    bench.settings = Arc::new(sources.load().expect("settings").settings);
    let lines = [
        r#"http://h/s/1"#,
        r#"http://h/x"#,
        r#"http://g/x"#,
        r#"{"url":"http://g/x","account":"me","endpoint":"e"}"#,
        r#"{"url":"http://g/x","headers":{"X-Key":"1"}}"#,
        r#"{"url":"http://g/x","headers":{"x-key":"1"}}"#,
        r#"http://g/x?app=1"#,
        r#"http://g/x"#,
    ];
    assert_eq!(bench.import(&bench.write(lines.join("\n"))).await, Ok(Imported::All));
    let lanes = bench.lanes();
    let parts: Vec<Vec<&str>> = lanes.iter().map(|lane| lane.split(' ').collect()).collect();
    assert_eq!((parts[0][2], parts[1][2]), ("search", "-"));
    assert!(parts[0][1].starts_with('~') && parts[0][1] == parts[1][1], "the host's header is its account");
    assert_eq!(
        (lanes[2].as_str(), lanes[3].as_str(), lanes[7].as_str()),
        ("http://g - -", "http://g me e", "http://g - -")
    );
    assert!(lanes[4] == lanes[5] && parts[4][1].starts_with('~') && parts[4][1] != parts[0][1]);
    assert!(parts[6][1].starts_with('~') && parts[6][1] != parts[4][1]);
}

#[tokio::test]
async fn j3_an_import_that_was_stopped_goes_on() {
    let bench = Bench::new();
    let text: String = (0..30_000).map(|i| format!("http://h{}/{i}\n", i % 7)).collect();
    let source = bench.write(&text);
    let mut stops = 0;
    loop {
        let job = bench.open();
        let importer = bench.start(&job, &source).expect("started");
        // At whatever moment that is.
        while importer.progress().items() < 2000 && importer.ended().is_none() {
            tokio::task::yield_now().await;
        }
        importer.stop();
        let end = importer.finished().await.expect("read");
        job.close().await.expect("closed");
        stops += 1;
        if end == Imported::All {
            break;
        }
        assert!(stops < 100, "it gets on in every run");
    }
    let (found, bad) = bench.items();
    assert!(bad.is_empty());
    assert_eq!(found, (0..30_000).map(|i| (i + 1, format!("http://h{}/{i}", i % 7))).collect::<Vec<_>>());
}

#[tokio::test]
async fn j3_a_closed_job_stops_its_import() {
    let bench = Bench::new();
    let text: String = (0..200_000).map(|i| format!("http://h/{i}\n")).collect();
    let job = bench.open();
    let importer = bench.start(&job, &bench.write(text)).expect("started");
    job.close().await.expect("closed");
    assert!(importer.finished().await.is_ok(), "that is no fault of the input");
}

#[tokio::test]
async fn j3_a_grown_input_adds_what_is_new() {
    let bench = Bench::new();
    assert_eq!(bench.import(&bench.write("http://h/1\nhttp://h/2")).await, Ok(Imported::All));
    // The same again adds nothing; a newline at last adds nothing; then come lines.
    for (text, expected) in [
        ("http://h/1\nhttp://h/2", items(&[(1, "http://h/1"), (2, "http://h/2")])),
        ("http://h/1\nhttp://h/2\n", items(&[(1, "http://h/1"), (2, "http://h/2")])),
        (
            "http://h/1\nhttp://h/2\nhttp://h/3\n",
            items(&[(1, "http://h/1"), (2, "http://h/2"), (3, "http://h/3")]),
        ),
    ] {
        assert_eq!(bench.import(&bench.write(text)).await, Ok(Imported::All), "{text:?}");
        assert_eq!(bench.items(), (expected, vec![]), "{text:?}");
    }
    assert_eq!(bench.events.lock().len(), 2, "two of them had grown: {:?}", bench.events.lock());
}

#[tokio::test]
async fn j3_a_last_line_that_was_torn_is_told_of() {
    let bench = Bench::new();
    assert_eq!(bench.import(&bench.write("http://h/1\nhttp://h/2")).await, Ok(Imported::All));
    assert_eq!(bench.import(&bench.write("http://h/1\nhttp://h/22\nhttp://h/3\n")).await, Ok(Imported::All));
    assert_eq!(bench.items(), (items(&[(1, "http://h/1"), (2, "http://h/2"), (4, "http://h/3")]), vec![3]));
    assert!(bench.events.lock().contains(&ImportEvent::LineWasTorn { line: 2 }));
}

/// Another input must not take the place of items that wait.
#[tokio::test]
async fn j3_another_input_is_refused_and_the_first_one_goes_on() {
    let bench = Bench::new();
    let first = bench.write("http://a/1\nhttp://a/2\n");
    assert_eq!(bench.import(&first).await, Ok(Imported::All));
    for other in ["http://b/1\nhttp://b/2\nhttp://b/3\n", "http://a/1\n", ""] {
        let error = bench.import(&bench.write(other)).await.expect_err(other);
        assert!(error.contains("is not the input that this job was made from"), "{error}");
    }
    assert_eq!(bench.import(&bench.write("http://a/1\nhttp://a/2\n")).await, Ok(Imported::All));
    assert_eq!(bench.items().0.len(), 2);
}

#[tokio::test]
async fn j3_an_input_that_was_cut_is_another_one() {
    let bench = Bench::new();
    let source = bench.write("http://a/1\n");
    let job = bench.open();
    job.set_input(InputIdentity::of(source.path()).expect("read")).expect("set");
    // It grew while it was read.
    let position = InputPosition { offset: 22, line: 2 };
    job.import(Batch { position, ..Batch::default() }).expect("imported");
    job.close().await.expect("closed");
    let error = bench.import(&source).await.expect_err("cut since");
    assert!(error.contains("is not the input that this job was made from"), "{error}");
}

#[tokio::test]
async fn what_is_no_text_is_refused_with_a_remedy() {
    for (head, word) in [
        (&b"\xff\xfeh\0t\0"[..], "iconv"),
        (b"\xfe\xff\0h\0t", "iconv"),
        (b"\x1f\x8b\x08\0", "zcat"),
        (b"PK\x03\x04", "unpack"),
    ] {
        let bench = Bench::new();
        let error = bench.import(&bench.write(head)).await.expect_err(word);
        assert!(error.contains(word), "{error}");
    }
    let bench = Bench::new();
    let error = bench.import(&Source::named(bench.dir.path())).await.expect_err("a directory");
    assert!(error.contains("is a directory"), "{error}");
    let error = bench.import(&Source::named(bench.path("none"))).await.expect_err("nothing");
    assert!(error.contains("cannot read"), "{error}");
}

#[tokio::test]
async fn j3_an_empty_input_is_an_input() {
    let bench = Bench::new();
    assert_eq!(bench.import(&bench.write("")).await, Ok(Imported::All));
    assert_eq!(bench.import(&bench.write("http://h/1\n")).await, Ok(Imported::All));
    assert_eq!(bench.items().0.len(), 1, "it has grown");
}

#[tokio::test]
async fn a_time_in_the_future_parks_and_one_in_the_past_does_not() {
    let bench = Bench::new();
    let text = r#"{"url":"http://h/1","not_before":"2001-01-01T00:00:00Z"}
{"url":"http://h/2","not_before":"9999-01-01T00:00:00Z"}"#;
    assert_eq!(bench.import(&bench.write(text)).await, Ok(Imported::All));
    let states: Vec<_> = bench.listed().into_iter().map(|item| item.state).collect();
    assert!(matches!(&states[..], [State::Pending, State::Parked(..)]), "{states:?}");
}

#[tokio::test]
async fn k1_a_bad_line_puts_no_secret_anywhere() {
    let bench = Bench::new();
    let text = "API_KEY=S3cr3tXYZ\nftp://u:S3cr3tXYZ@h/?token=S3cr3tXYZ\n{\"url\":\"http://h/?sig=S3cr3tXYZ\",\"x\":\"S3cr3tXYZ\"}\n";
    assert_eq!(bench.import(&bench.write(text)).await, Ok(Imported::All));
    assert_eq!(bench.items().1, [1, 2, 3]);
    for name in ["out", "job"] {
        let bytes = fs::read(bench.path(name)).expect("read");
        assert!(!bytes.windows(9).any(|w| w == b"S3cr3tXYZ"), "in {name}");
    }
    assert!(!format!("{:?}", bench.events.lock()).contains("S3cr3tXYZ"));
    assert!(bench.output().contains(r#""url":"ftp://h/?token=***""#), "{}", bench.output());
}

/// A pipe as a file name: what the shell makes of `<(...)`.
#[cfg(target_os = "linux")]
mod pipes {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn pipe() -> (std::io::PipeReader, std::io::PipeWriter, Source) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let source = Source::named(Path::new("/proc/self/fd").join(reader.as_raw_fd().to_string()));
        (reader, writer, source)
    }

    #[tokio::test]
    async fn j3_nobody_waits_for_a_pipe_to_fill_a_batch() {
        let bench = Bench::new();
        let job = bench.open();
        let (reader, mut writer, source) = pipe();
        let importer = bench.start(&job, &source).expect("started");
        let mut arrivals = job.arrivals();
        for round in 1..=3u64 {
            write!(writer, "http://h/{round}\nhttp://h/").expect("written");
            arrivals.wait_for(|n| *n >= round).await.expect("arrived, with half a line behind it");
            writeln!(writer).expect("written");
        }
        drop((reader, writer));
        assert_eq!(importer.finished().await.expect("read"), Imported::All);
        assert_eq!(job.close().await.expect("closed").imported, 6);
    }

    #[tokio::test]
    async fn j3_nobody_waits_for_the_writer_of_a_named_pipe() {
        let bench = Bench::new();
        let path = bench.path("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let job = bench.open();
        let importer = bench.start(&job, &Source::named(&path)).expect("started, though nobody writes");
        let writer = tokio::task::spawn_blocking(move || fs::write(path, "http://h/1\n"));
        writer.await.expect("no panic").expect("written");
        assert_eq!(importer.finished().await.expect("read"), Imported::All);
        assert_eq!(job.close().await.expect("closed").imported, 1);
    }

    /// Feeds `text` and imports it; ends the run.
    async fn run(bench: &Bench, text: &str) -> Result<Imported, String> {
        let (reader, mut writer, source) = pipe();
        writer.write_all(text.as_bytes()).expect("so little fits a pipe");
        drop(writer);
        let result = bench.import(&source).await;
        // Until here: the name is only good as long as the pipe is open.
        drop(reader);
        result
    }

    #[tokio::test]
    async fn j3_a_stream_is_read_again_and_what_is_known_is_skipped() {
        let bench = Bench::new();
        let text = "http://h/1\nhttp://h/2\n";
        assert_eq!(run(&bench, text).await, Ok(Imported::All));
        assert_eq!(run(&bench, text).await, Ok(Imported::All));
        assert_eq!(run(&bench, "http://h/1\nhttp://h/2\nhttp://h/3\n").await, Ok(Imported::All));
        assert_eq!(bench.items().0, items(&[(1, "http://h/1"), (2, "http://h/2"), (3, "http://h/3")]));
        assert!(bench.events.lock().is_empty());
        let error = run(&bench, "http://g/1\nhttp://g/2\nhttp://g/3\n").await.expect_err("another");
        assert!(error.contains("is not the input that this job was made from"), "{error}");
    }

    #[tokio::test]
    async fn j3_an_empty_stream_adds_nothing_and_loses_nothing() {
        let bench = Bench::new();
        assert_eq!(run(&bench, "http://h/1\nhttp://h/2\n").await, Ok(Imported::All));
        for (text, lines) in [("", 2), ("http://h/1\nhttp://h/2", 2)] {
            let end = run(&bench, text).await;
            // One that is shorter than the first look was is another input.
            assert!(if text.is_empty() { end == Ok(Imported::All) } else { end.is_err() }, "{end:?}");
            assert_eq!(bench.items().0.len(), lines);
        }
        assert_eq!(*bench.events.lock(), [ImportEvent::Shorter { lines: 2 }]);
    }
}

/// A line of the property test: mostly what could go wrong.
fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "http://[ab]{1,2}(:80)?[/?#@]?[a-z@#?/ ]{0,6}".prop_map(String::into_bytes),
        1 => "(HTTP|https|ftp)://(u:p@)?[AB.]{0,3}(/x)?".prop_map(String::into_bytes),
        1 => "\\{\"url\":\"http://[ab]/\"(,\"id\":[0-9])?\\}?".prop_map(String::into_bytes),
        1 => "[ \t]{0,2}(#.{0,5})?".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// N in = N accounted for: what the job holds is what each line alone comes to, by the same lanes.
    #[test]
    fn j5_a_job_holds_what_each_line_alone_comes_to(lines in prop::collection::vec(line(), 0..120), last in any::<bool>()) {
        let bench = Bench::new();
        let mut text = lines.join(&b'\n');
        if last {
            text.push(b'\n');
        }
        // The first bytes of a file may say that it is no text; another test has that.
        prop_assume!(text.first().is_none_or(|b| b.is_ascii_graphic() && !text.starts_with(b"PK") && !text.starts_with(b"BZh")));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        prop_assert_eq!(runtime.block_on(bench.import(&bench.write(&text))), Ok(Imported::All));
        let mut expected = (Vec::new(), Vec::new());
        let mut origins = Vec::new();
        for (line, number) in lines.iter().zip(1..) {
            match parse_line(line) {
                Line::Nothing => {}
                Line::Bad(_) => expected.1.push(number),
                Line::Item(item) => {
                    origins.push(item.target.origin().to_owned());
                    expected.0.push((number, item.request.url));
                }
            }
        }
        prop_assert_eq!(bench.items(), expected);
        let lanes: Vec<String> = bench.lanes().iter().map(|lane| lane.split(' ').next().unwrap_or_default().to_owned()).collect();
        prop_assert_eq!(lanes, origins);
    }
}
