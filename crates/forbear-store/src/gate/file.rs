//! Gates in a file, for several processes of one machine.

use std::{
    fs, io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forbear_core::time::Timestamp;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::{
    SharedOptions, StoreError,
    clock::{boot_now, wall_now},
    shared::{Link, LinkError, Page, Push, Reply, SharedGates, Write, member_of_a_fleet},
};

/// Gates that every process of this machine shares that names the same file.
///
/// The file is an SQLite database, with all that makes it safe against a process that dies in the middle. Pauses are
/// called out over Unix datagram sockets, one a process, in a directory beside the file. Its time is the boot clock (T1): a
/// step of the wall clock moves nothing, and over a reboot the wall clock carries it on.
pub struct FileGates(SharedGates<FileLink>);

impl FileGates {
    /// Joins the processes on this file, and makes it if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where the file cannot be used.
    pub async fn open(path: &Path, options: SharedOptions) -> Result<FileGates, StoreError> {
        let file = path.to_owned();
        let connecting = tokio::task::spawn_blocking(move || connect(&file));
        let connection =
            connecting.await.map_err(|lost| StoreError::Unreachable(io::Error::other(lost)))??;
        // One that listens and one that calls: calling never waits for a process that does not read.
        let mouth = mouth().map_err(StoreError::Unreachable)?;
        let (socket, mine) = listen(path).map_err(StoreError::Unreachable)?;
        let listener: Arc<OnceLock<Listener>> = Arc::default();
        let gone = Arc::new(AtomicBool::new(false));
        let (heard, done) = (listener.clone(), gone.clone());
        std::thread::Builder::new()
            .name("forbear-gate-news".into())
            .spawn(move || hear(&socket, &heard, &done))
            .map_err(StoreError::Unreachable)?;
        let link = FileLink {
            path: path.into(),
            connection: Arc::new(Mutex::new(connection)),
            socket: mouth,
            mine: Some(mine),
            gone,
        };
        let gates = SharedGates::new(link, options);
        let _ = listener.set(Box::new(gates.listener()));
        gates.greet().await?;
        Ok(FileGates(gates))
    }
}

member_of_a_fleet!(FileGates);

type Listener = Box<dyn Fn(Push) + Send + Sync>;

/// The way to a file that is there already, for whoever only looks or calls.
pub(super) fn outside(path: &Path) -> Result<FileLink, StoreError> {
    if !path.exists() {
        return Err(StoreError::Unreachable(io::ErrorKind::NotFound.into()));
    }
    Ok(FileLink {
        path: path.into(),
        connection: Arc::new(Mutex::new(connect(path)?)),
        socket: mouth().map_err(StoreError::Unreachable)?,
        mine: None,
        gone: Arc::default(),
    })
}

fn mouth() -> io::Result<UnixDatagram> {
    let mouth = UnixDatagram::unbound()?;
    mouth.set_nonblocking(true)?;
    Ok(mouth)
}

pub(super) struct FileLink {
    path: PathBuf,
    connection: Arc<Mutex<Connection>>,
    socket: UnixDatagram,
    /// Where this process listens, if it does.
    mine: Option<PathBuf>,
    gone: Arc<AtomicBool>,
}

impl Link for FileLink {
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        // Some ten microseconds under a lock that is held for as long; only a disk that hangs takes more.
        let (connection, writes_of) = (self.connection.clone(), writes.to_vec());
        let swap = move || swap(&mut connection.lock(), &writes_of).map_err(fault);
        let reply = tokio::task::spawn_blocking(swap).await.map_err(io::Error::other)??;
        if tell && reply.found.is_none() {
            self.tell(writes);
        }
        Ok(reply)
    }

    async fn call(&self, write: &Write) -> Result<(), LinkError> {
        self.tell(std::slice::from_ref(write));
        Ok(())
    }

    async fn reconnect(&self) -> Result<(), LinkError> {
        let path = self.path.clone();
        let fresh = tokio::task::spawn_blocking(move || connect(&path)).await.map_err(io::Error::other)?;
        *self.connection.lock() = fresh?;
        Ok(())
    }

    async fn page(&self, cursor: Option<&str>) -> Result<Page, LinkError> {
        let (connection, after) = (self.connection.clone(), cursor.unwrap_or_default().to_owned());
        let page = move || page(&connection.lock(), &after).map_err(fault);
        let values = tokio::task::spawn_blocking(page).await.map_err(io::Error::other)??;
        let next = if values.len() < PAGE { None } else { values.last().map(|(key, _)| key.clone()) };
        Ok((values, next))
    }
}

impl FileLink {
    /// Calls every process that listens. One that is gone has left its socket behind: it is removed.
    fn tell(&self, writes: &[Write]) {
        let Ok(others) = fs::read_dir(news_of(&self.path)) else { return };
        for other in
            others.flatten().map(|entry| entry.path()).filter(|path| Some(path) != self.mine.as_ref())
        {
            for write in writes.iter().filter(|write| !write.value.is_empty()) {
                let mut news = write.key.clone().into_bytes();
                news.push(0);
                news.extend(&write.value);
                match self.socket.send_to(&news, &other) {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        let _ = fs::remove_file(&other);
                    }
                    // One whose room is full hears of it when it asks.
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }
}

impl Drop for FileLink {
    fn drop(&mut self) {
        self.gone.store(true, Relaxed);
        if let Some(mine) = &self.mine {
            let _ = fs::remove_file(mine);
        }
    }
}

/// Compares and sets, in one transaction.
fn swap(connection: &mut Connection, writes: &[Write]) -> Result<Reply, rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let time = store_now(&transaction)?;
    let mut found = Vec::with_capacity(writes.len());
    for write in writes {
        let mut get =
            transaction.prepare_cached("SELECT value FROM gate WHERE scope = ?1 AND keep_until > ?2")?;
        let value = get.query_row((&write.key, number(time)), |row| row.get::<_, Vec<u8>>(0)).optional()?;
        found.push(value);
    }
    let expected = |(write, value): (&Write, &Option<Vec<u8>>)| match value {
        Some(value) => !write.expect.is_empty() && value.starts_with(&write.expect),
        None => write.expect.is_empty(),
    };
    if !writes.iter().zip(&found).all(expected) {
        return Ok(Reply { time: Some(time), found: Some(found) });
    }
    for write in writes.iter().filter(|write| !write.value.is_empty()) {
        let mut set = transaction
            .prepare_cached("INSERT OR REPLACE INTO gate (scope, value, keep_until) VALUES (?1, ?2, ?3)")?;
        set.execute((&write.key, &write.value, number(time.plus(write.keep))))?;
    }
    transaction.commit()?;
    Ok(Reply { time: Some(time), found: None })
}

/// The file's present moment: its boot clock carried on, or the wall clock after another boot. It never goes back.
fn store_now(connection: &Connection) -> Result<Timestamp, rusqlite::Error> {
    let mut get = connection.prepare_cached("SELECT boot, ahead_us, last_us FROM clock")?;
    let (boot, ahead, last): (String, i64, i64) =
        get.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let wall = number(wall_now());
    let Some((id, up)) = boot_now() else { return Ok(moment(wall.max(last))) };
    let up = i64::try_from(up.as_micros()).unwrap_or(i64::MAX);
    if id == boot {
        return Ok(moment(up.saturating_add(ahead).max(last)));
    }
    let now = wall.max(last);
    let mut set = connection.prepare_cached("UPDATE clock SET boot = ?1, ahead_us = ?2, last_us = ?3")?;
    set.execute((id, now - up, now))?;
    Ok(moment(now))
}

fn page(connection: &Connection, after: &str) -> Result<Vec<(String, Vec<u8>)>, rusqlite::Error> {
    let mut get = connection.prepare_cached(
        "SELECT scope, value FROM gate WHERE scope > ?1 AND keep_until > ?2 ORDER BY scope LIMIT ?3",
    )?;
    let now = number(store_now(connection)?);
    let rows = get.query_map((after, now, PAGE as i64), |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

fn connect(path: &Path) -> Result<Connection, LinkError> {
    private(path)?;
    let connection = Connection::open(path).map_err(fault)?;
    connection.busy_timeout(BUSY).map_err(fault)?;
    refuse_others(&connection)?;
    prepare(&connection).map_err(fault)?;
    Ok(connection)
}

/// What the key of accounts can be read from is its owner's alone (K1).
fn private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Only a file of gates, or nothing at all, is opened: what is a job, or anybody else's, stays as it is (J4).
fn refuse_others(connection: &Connection) -> Result<(), LinkError> {
    let (application, version, tables) = kind_of(connection).map_err(fault)?;
    let other = |text: &str| Err(LinkError::Io(io::Error::other(text.to_owned())));
    match (application, tables) {
        (APPLICATION_ID, _) if version > VERSION => other("it was made by a later version of this program"),
        (APPLICATION_ID, _) | (0, 0) => Ok(()),
        (A_JOB, _) => other("it is a job, not a file of gates"),
        _ => other("it is a file of another program"),
    }
}

/// Application, version and number of tables, of one moment: another process may be making the file.
fn kind_of(connection: &Connection) -> Result<(i64, i64, i64), rusqlite::Error> {
    let look = connection.unchecked_transaction()?;
    // The first read sets the moment, and the header's numbers are no read of a table.
    let tables = look.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    let number = |pragma| look.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    Ok((number("application_id")?, number("user_version")?, tables))
}

/// Write-ahead logging. SQLite waits for nobody where the mode of a file changes, so whoever opens a new file together with
/// others asks again.
fn log_ahead(connection: &Connection) -> Result<(), rusqlite::Error> {
    let began = Instant::now();
    loop {
        match connection.pragma_update(None, "journal_mode", "wal") {
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && began.elapsed() < BUSY =>
            {
                #[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
                std::thread::sleep(AGAIN);
            }
            done => return done,
        }
    }
}

fn prepare(connection: &Connection) -> Result<(), rusqlite::Error> {
    log_ahead(connection)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.execute_batch(
        "BEGIN IMMEDIATE;
         CREATE TABLE IF NOT EXISTS gate (scope TEXT PRIMARY KEY, value BLOB NOT NULL, keep_until INTEGER NOT NULL)
             WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS clock (boot TEXT NOT NULL, ahead_us INTEGER NOT NULL, last_us INTEGER NOT NULL);
         INSERT INTO clock SELECT '', 0, 0 WHERE NOT EXISTS (SELECT 1 FROM clock);
         PRAGMA application_id = 0x666f7267;
         PRAGMA user_version = 1;
         COMMIT;",
    )?;
    let now = number(store_now(connection)?);
    connection.execute("UPDATE clock SET last_us = ?1", [now])?;
    connection.execute("DELETE FROM gate WHERE keep_until <= ?1", [now])?;
    Ok(())
}

/// A socket of this process's own, in the directory beside the file.
fn listen(path: &Path) -> io::Result<(UnixDatagram, PathBuf)> {
    let dir = news_of(path);
    fs::create_dir_all(&dir)?;
    let mine = dir.join(format!("{:x}-{:08x}", std::process::id(), fastrand::u32(..)));
    let socket = UnixDatagram::bind(&mine)?;
    socket.set_read_timeout(Some(LISTEN))?;
    Ok((socket, mine))
}

fn news_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".news");
    path.with_file_name(name)
}

/// Hands on what is called, until the store is dropped.
fn hear(socket: &UnixDatagram, listener: &OnceLock<Listener>, gone: &AtomicBool) {
    let mut room = vec![0; NEWS_MAX];
    while !gone.load(Relaxed) {
        let Ok(len) = socket.recv(&mut room) else { continue }; // the time is over, or a signal came
        let Some(end) = room[..len].iter().position(|byte| *byte == 0) else { continue };
        if let (Ok(scope), Some(listener)) = (str::from_utf8(&room[..end]), listener.get()) {
            listener(Push::Value(scope.to_owned(), room[end + 1..len].to_vec()));
        }
    }
}

fn fault(error: rusqlite::Error) -> LinkError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => LinkError::Hung,
        Some(rusqlite::ErrorCode::NotADatabase) => LinkError::Io(io::Error::other("it is no file of gates")),
        Some(rusqlite::ErrorCode::DiskFull) => LinkError::Io(io::ErrorKind::StorageFull.into()),
        Some(rusqlite::ErrorCode::ReadOnly) => LinkError::Io(io::ErrorKind::ReadOnlyFilesystem.into()),
        Some(rusqlite::ErrorCode::CannotOpen) => LinkError::Io(io::ErrorKind::NotFound.into()),
        code => LinkError::Io(io::Error::other(format!("the file cannot be used ({code:?})"))),
    }
}

/// SQLite's numbers have a sign.
fn number(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

fn moment(us: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(us).unwrap_or(0))
}

/// "forg", so that a file of gates can be told from any other.
const APPLICATION_ID: i64 = 0x666f_7267;
/// What a job's file has there.
const A_JOB: i64 = 0x666f_7262;
/// Scopes that are listed at once.
const PAGE: usize = 500;
/// The version of the file's tables.
const VERSION: i64 = 1;
/// Another process that holds the file for so long is not well.
const BUSY: Duration = Duration::from_millis(900);
/// Between two tries of what SQLite does not wait for.
const AGAIN: Duration = Duration::from_millis(2);
/// How often the listening thread looks whether it is still needed.
const LISTEN: Duration = Duration::from_millis(200);
/// A record is smaller than this.
const NEWS_MAX: usize = 64 * 1024;
