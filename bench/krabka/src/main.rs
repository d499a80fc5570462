//! krabka-log's answers to what bench/ asks: `krabka-bench read DIRECTORY` of a log that is there, and
//! `krabka-bench append DIRECTORY RECORDS-A-BATCH RECORDS`, which makes one and removes it again. A line for each
//! round, after one to warm up: the way, seconds, records, their bytes.
//!
//! Values of 100 bytes, no keys, one thread; nothing is synced. What each way does, by krabka-log 1.0.8 itself:
//!   raw      `Log::read_raw`, its fastest: bytes of whole batches. It looks at each batch's header; it neither checks
//!            a CRC nor meets a record
//!   records  the same bytes, then CRC and every record: `validate_one_v2_batch`, `validate_records_with`. A record
//!            borrows its value: faster than `Log::read`, whose records are objects of their own
//!   memory   the same on bytes that were read before, some 1,000,000 records of them
//!   append   records made from values in memory, a batch at a time, and `Log::append`, which encodes and writes
//!   encode   of that, `Log::append` alone
//!   ready    one encoded batch again and again: CRC checked, `Log::append_verbatim`

use bytes::Bytes;
use krabka_log::{Log, LogConfig, Offset, VerbatimBatch};
use krabka_protocol::records::{Record, RecordBatch, validate_one_v2_batch};
use krabka_units::prelude::{ByteSize, mebibytes};
use std::time::{Duration, Instant, SystemTime};
use std::{env, error::Error, fs, hint::black_box};

type Answer<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
const AT_ONCE: ByteSize = mebibytes(1); // less, and more, was slower
const VALUE: usize = 100;

fn main() -> Answer<()> {
    let args: Vec<String> = env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["read", directory] => read(directory),
        ["append", directory, each, count] => append(directory, each.parse()?, count.parse()?),
        _ => Err("read DIRECTORY, or append DIRECTORY RECORDS-A-BATCH RECORDS".into()),
    }
}

fn line(way: &str, round: usize, spent: Duration, records: usize, bytes: usize) {
    if round > 0 {
        println!("{way} {} {records} {bytes}", spent.as_secs_f64());
    }
}

/// Records and bytes of what `run` goes over, in each round.
fn rounds(way: &str, mut run: impl FnMut() -> Answer<(usize, usize)>) -> Answer<()> {
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let (records, bytes) = run()?;
        line(way, round, start.elapsed(), records, bytes);
    }
    Ok(())
}

fn read(directory: &str) -> Answer<()> {
    let log = Log::open(directory, LogConfig::default())?;
    rounds("raw", || raw(&log, log.log_end_offset(), |_| Ok(())))?;
    rounds("records", || raw(&log, log.log_end_offset(), walk))?;
    let mut chunks = Vec::new();
    let some = log.log_end_offset().min(Offset(1_000_000));
    let (records, bytes) = raw(&log, some, |chunk| Ok(chunks.push(chunk.clone())))?;
    rounds("memory", || {
        chunks.iter().try_for_each(walk)?;
        Ok((records, bytes))
    })
}

/// The log's batches up to `end`, each chunk to `see`; how many records and bytes these are.
fn raw(log: &Log, end: Offset, mut see: impl FnMut(&Bytes) -> Answer<()>) -> Answer<(usize, usize)> {
    let (mut next, mut bytes) = (Offset(0), 0);
    while next < end {
        let got = log.read_raw(next, end, AT_ONCE)?;
        next = got.last_offset.ok_or("a hole in the log")? + 1;
        bytes += got.total;
        see(&got.bytes)?;
    }
    Ok((next.0.try_into()?, bytes))
}

fn walk(chunk: &Bytes) -> Answer<()> {
    let (mut at, mut total) = (0, 0);
    while at < chunk.len() {
        let batch = validate_one_v2_batch(&chunk[at..])?;
        batch.validate_records_with(Default::default(), |record| {
            total += record.value.map_or(0, <[u8]>::len)
        })?;
        at += batch.total_len;
    }
    black_box(total);
    Ok(())
}

fn append(directory: &str, each: usize, count: usize) -> Answer<()> {
    let values = random(count / each * each * VALUE);
    let now = SystemTime::UNIX_EPOCH.elapsed()?.as_millis().try_into()?;
    for round in 0..=ROUNDS {
        let mut log = Log::open(directory, LogConfig::default())?;
        let mut encoding = Duration::ZERO;
        let start = Instant::now();
        for at in (0..values.len()).step_by(each * VALUE) {
            let mut batch = made(&values.slice(at..at + each * VALUE), now);
            let before = Instant::now();
            log.append(&mut batch)?;
            encoding += before.elapsed();
        }
        let spent = start.elapsed();
        log.close();
        fs::remove_dir_all(directory)?;
        line("append", round, spent, values.len() / VALUE, values.len());
        line("encode", round, encoding, values.len() / VALUE, values.len());
    }
    let ready = made(&values.slice(..each * VALUE), now).encode_to_bytes()?;
    for round in 0..=ROUNDS {
        let mut log = Log::open(directory, LogConfig::default())?;
        let start = Instant::now();
        for _ in 0..count / each {
            let header = validate_one_v2_batch(&ready)?.header;
            log.append_verbatim(&VerbatimBatch::from_header(header, ready.clone()))?;
        }
        let spent = start.elapsed();
        log.close();
        fs::remove_dir_all(directory)?;
        line("ready", round, spent, values.len() / VALUE, values.len());
    }
    Ok(())
}

/// A batch of those values.
fn made(values: &Bytes, now: i64) -> RecordBatch {
    let value = |number| Some(values.slice(number * VALUE..(number + 1) * VALUE));
    let records = (0..values.len() / VALUE).map(|number| Record {
        offset_delta: number as i32,
        value: value(number),
        ..Record::default()
    });
    let records: Vec<Record> = records.collect();
    RecordBatch {
        last_offset_delta: records.len() as i32 - 1,
        base_timestamp: now,
        max_timestamp: now,
        records,
        ..RecordBatch::default()
    }
}

/// Bytes that no compression would shrink, by Marsaglia's xorshift.
fn random(size: usize) -> Bytes {
    let mut state = 20_240_501_u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..size.div_ceil(8)).flat_map(|_| word()).take(size).collect()
}
