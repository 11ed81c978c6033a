//! Body files: durable and in their place before the record that names them is written.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::item::BodyFile;

/// From this many on, one sync of the whole file system is cheaper than one for each file and directory.
const SYNC_ALL_FROM: usize = 16;

/// Makes `bodies` durable and renames them. May be called again after an error: what is done is found done.
///
/// Gives the indices of those that are lost: neither aside nor in place.
pub(crate) fn settle(bodies: &[(usize, &BodyFile)]) -> Result<Vec<usize>, (PathBuf, io::Error)> {
    let mut lost = Vec::new();
    let mut dirs: Vec<&Path> = Vec::new();
    let together = bodies.len() >= SYNC_ALL_FROM;
    if together {
        // Contents first: after a power cut no name may stand for half a body.
        sync_file_systems(bodies.iter().map(|(_, body)| body.aside.as_path()))?;
    }
    for (index, body) in bodies {
        match settle_one(body, together) {
            Ok(true) => dirs.extend(body.path.parent()),
            Ok(false) => lost.push(*index),
            Err(error) => return Err((body.aside.clone(), error)),
        }
    }
    dirs.sort_unstable();
    dirs.dedup();
    if dirs.len() >= SYNC_ALL_FROM {
        sync_file_systems(dirs.iter().copied())?;
    } else {
        for dir in dirs {
            File::open(dir).and_then(|d| d.sync_all()).map_err(|error| (dir.to_owned(), error))?;
        }
    }
    Ok(lost)
}

/// Whether the body is in its place now.
fn settle_one(body: &BodyFile, synced: bool) -> io::Result<bool> {
    if !synced {
        match File::open(&body.aside).and_then(|file| file.sync_data()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(body.path.exists()),
            Err(error) => return Err(error),
        }
    }
    match fs::rename(&body.aside, &body.path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(body.path.exists()),
        Err(error) => Err(error),
    }
}

/// Syncs each file system that one of `paths` lies on; those that are gone have been renamed already.
#[cfg(target_os = "linux")]
fn sync_file_systems<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<(), (PathBuf, io::Error)> {
    use std::os::unix::fs::MetadataExt;
    let mut seen: Vec<u64> = Vec::new();
    for path in paths {
        let Ok(file) = File::open(path) else { continue };
        let device = file.metadata().map_err(|error| (path.to_owned(), error))?.dev();
        if !seen.contains(&device) {
            rustix::fs::syncfs(&file).map_err(|error| (path.to_owned(), error.into()))?;
            seen.push(device);
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn sync_file_systems<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<(), (PathBuf, io::Error)> {
    for path in paths {
        let Ok(file) = File::open(path) else { continue };
        file.sync_all().map_err(|error| (path.to_owned(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j1_bodies_are_in_place_and_a_second_try_finds_them() {
        for count in [1, SYNC_ALL_FROM + 3] {
            let dir = tempfile::tempdir().expect("a directory");
            let bodies: Vec<BodyFile> = (0..count)
                .map(|i| BodyFile {
                    aside: dir.path().join(format!("{i}.part")),
                    path: dir.path().join(format!("{i}")),
                })
                .collect();
            for body in &bodies[1..] {
                fs::write(&body.aside, "x").expect("written");
            }
            let all: Vec<(usize, &BodyFile)> = bodies.iter().enumerate().collect();
            assert_eq!(settle(&all).expect("settled"), [0], "the first was never written");
            assert!(bodies[1..].iter().all(|b| b.path.exists() && !b.aside.exists()));
            assert_eq!(settle(&all).expect("settled again"), [0]);
        }
    }
}
