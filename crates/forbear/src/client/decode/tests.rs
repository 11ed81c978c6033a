use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use http::HeaderValue;

use super::*;

fn text() -> Vec<u8> {
    (0..8_000u32).flat_map(|n| format!("line {} of {}\n", n, n * 31 % 977).into_bytes()).collect()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn bare(data: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(data: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(data, 3).unwrap()
}

/// "forbear " 4096 times, at quality 11.
const BROTLI: &[u8] = &[
    0x1b, 0xff, 0x7f, 0xf8, 0x8d, 0x54, 0xb5, 0xbf, 0x0e, 0x33, 0x7b, 0x93, 0x93, 0x20, 0x62, 0x65, 0xf1,
    0x5b, 0x38, 0x40, 0xf6, 0x0e, 0xc0, 0x6e, 0x06,
];

/// Decodes `body` in pieces of `size`; `None` if it does not decode, or is cut.
fn decode(coding: &str, body: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_str(coding).unwrap());
    let mut decoding = Decoding::of(&headers).unwrap().unwrap();
    let mut whole = Vec::new();
    for piece in body.chunks(size) {
        decoding.feed(Bytes::copy_from_slice(piece));
        while let Some(data) = decoding.take().ok()? {
            assert!(data.len() <= STEP_BYTES, "one step yields little");
            whole.extend_from_slice(&data);
        }
    }
    decoding.is_complete().then_some(whole)
}

#[test]
fn v4_every_coding_decodes_in_pieces_of_every_size() {
    let text = text();
    let every_field =
        [&[0x1f, 0x8b, 8, 2 + 4 + 8 + 16, 1, 2, 3, 4, 0, 3, 5, 0], &b"extraname\0comment\0##"[..]].concat();
    let with_fields = [&every_field[..], &gzip(&text)[10..]].concat();
    for (coding, body, expected) in [
        ("gzip", gzip(&text), text.clone()),
        ("x-gzip", gzip(&text), text.clone()),
        ("gzip", [gzip(&text), gzip(b"more")].concat(), [&text[..], b"more"].concat()),
        ("gzip", [gzip(&text), b"rubbish".to_vec()].concat(), text.clone()),
        ("gzip", [gzip(&text), vec![0; 100]].concat(), text.clone()),
        ("gzip", with_fields, text.clone()),
        ("gzip", gzip(b""), vec![]),
        ("deflate", zlib(&text), text.clone()),
        ("deflate", bare(&text), text.clone()),
        ("deflate", [bare(&text), b"rubbish".to_vec()].concat(), text.clone()),
        ("zstd", zstandard(&text), text.clone()),
        ("zstd", [zstandard(&text), zstandard(b"more")].concat(), [&text[..], b"more"].concat()),
        ("zstd", [zstandard(&text), b"rubbish".to_vec()].concat(), text.clone()),
        ("BR", BROTLI.to_vec(), b"forbear ".repeat(4096)),
        ("gzip, identity, zstd", zstandard(&gzip(&text)), text.clone()),
        ("deflate,gzip,gzip", gzip(&gzip(&zlib(&text))), text.clone()),
        ("gzip", vec![], vec![]),
    ] {
        for size in [1, 2, 7, 1000, usize::MAX] {
            assert!(decode(coding, &body, size).as_ref() == Some(&expected), "{coding} in pieces of {size}");
        }
    }
}

#[test]
fn v4_a_cut_or_damaged_stream_is_an_error() {
    let text = text();
    let mut flipped = gzip(&text);
    let checksum = flipped.len() - 6;
    flipped[checksum] ^= 1;
    assert_eq!(decode("gzip", &flipped, 1000), None, "a wrong checksum");
    assert_eq!(decode("gzip", b"plain text", 1000), None);
    assert_eq!(decode("zstd", b"plain text", 1000), None);
    assert_eq!(decode("deflate", &[0xff; 30], 1000), None);
    for (coding, body) in [
        ("gzip", gzip(&text)),
        ("deflate", zlib(&text)),
        ("deflate", bare(&text)),
        ("zstd", zstandard(&text)),
        ("br", BROTLI.to_vec()),
        ("gzip, gzip", gzip(&gzip(&text))),
    ] {
        for cut in [1, 2, 8, 9, body.len() / 2, body.len() - 1] {
            let cut = body.len().saturating_sub(cut).max(1);
            assert_eq!(decode(coding, &body[..cut], 1000), None, "{coding} cut to {cut} of {}", body.len());
        }
    }
    let two = [gzip(&text), gzip(&text)].concat();
    assert_eq!(decode("gzip", &two[..two.len() - 5], 1000), None, "the second member is cut");
}

#[test]
fn unknown_codings_are_left_alone_and_too_many_refused() {
    let of = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(value));
        Decoding::of(&headers).map(|decoding| decoding.is_some())
    };
    assert_eq!(of("x-odd"), Ok(false));
    assert_eq!(of("gzip, x-odd"), Ok(false));
    assert_eq!(of("identity"), Ok(false));
    assert_eq!(of(""), Ok(false));
    assert_eq!(of("gzip"), Ok(true));
    assert_eq!(of("gzip, gzip, gzip, gzip"), Err(Broken::TooMany));
}
