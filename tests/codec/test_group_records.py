"""The records of `__consumer_offsets` and `__transaction_state`: a broker's bytes read, and written again the same."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.codec.coordinator import group_records, transaction_records
from kstore.codec.coordinator._states import state_value
from kstore.codec.coordinator.group_records import GroupKey, MemberKey, OffsetKey, Position, SchemaError
from kstore.codec.coordinator.transaction_records import Status, TransactionState
from tests.golden import goldensets

OFFSETS = [
    each
    for set_, directory in (("consumer-offsets", "dir/__consumer_offsets-0"),)
    for each in goldensets.expected_records(set_, directory)
    if not each.line["isControl"]
]
TRANSACTIONS = [
    each
    for each in goldensets.expected_records("transactions", "dir/__transaction_state-0")
    if not each.line["isControl"]
]


def test_every_position_that_a_broker_wrote_is_written_again_with_the_same_bytes() -> None:
    written = 0
    for each in OFFSETS:
        assert each.key is not None
        key = group_records.parse_key(each.key)
        if isinstance(key, OffsetKey):
            assert group_records.offset_key(*key) == each.key
            if each.value is not None:
                assert group_records.offset_value(group_records.parse_position(each.value)) == each.value
                written += 1
        elif isinstance(key, GroupKey) and key.classic:
            assert group_records.group_key(key.group) == each.key
    assert written > 30


def test_a_brokers_transaction_states_are_written_again_with_the_same_bytes() -> None:
    seen = set()
    for each in TRANSACTIONS:
        assert each.key is not None
        assert each.value is not None
        name = transaction_records.parse_transactional_id(each.key)
        assert name is not None
        assert transaction_records.transaction_key(name) == each.key
        state = transaction_records.parse_transaction(each.value)
        assert state.to_bytes() == each.value
        seen.add(state.status)
    assert seen == set(Status) - {Status.DEAD, Status.PREPARE_EPOCH_FENCE}


def test_the_values_of_an_older_broker_are_read() -> None:
    found = [
        transaction_records.parse_transaction(each.value)
        for each in goldensets.expected_records("transactions-2.8", "dir/__transaction_state-0")
        if each.value is not None
    ]
    assert {state.status for state in found} >= {Status.EMPTY, Status.ONGOING, Status.COMPLETE_COMMIT}
    assert all(state.previous_producer_id == -1 for state in found)


def test_old_values_of_a_position_are_read() -> None:
    old = struct.pack(">hqh2sq", 0, 7, 2, b"ab", 99)
    assert group_records.parse_position(old) == Position(7, -1, "ab", 99)
    asked = struct.pack(">hqh2sqq", 1, 7, 2, b"ab", 99, 100)
    assert group_records.parse_position(asked) == Position(7, -1, "ab", 99, expires_ms=100)


@pytest.mark.parametrize(
    ("name", "value", "partition"),
    [
        ("grp", 102629, 29),
        ("my-group", -1906497762, 12),
        ("console-consumer-1", 35782224, 24),
        ("polygenelubricants", -2147483648, 0),
        ("", 0, 0),
    ],
)
def test_a_group_belongs_to_the_partition_that_its_java_hash_says(name: str, value: int, partition: int) -> None:
    assert group_records.java_hash(name) == value  # the table of FORMAT 12.2
    assert group_records.partition_of_name(name, 50) == partition


def test_the_hash_counts_code_units_of_utf_16() -> None:
    assert group_records.java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_a_name_that_its_length_field_cannot_tell_is_refused() -> None:
    assert len(group_records.offset_key("g" * 0x7FFF, "t", 0)) == 0x7FFF + 11
    with pytest.raises(ValueError, match="group takes 32768 bytes; 32767 are allowed"):
        group_records.offset_key("g" * 0x8000, "t", 0)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=200),
    st.integers(-1, 2**63 - 1),
    st.none() | st.uuids().filter(lambda one: one.int != 0),
)
def test_a_position_reads_as_it_was_written(
    offset: int, epoch: int, metadata: str, stamp: int, topic_id: uuid.UUID | None
) -> None:
    position = Position(offset, epoch, metadata, stamp, topic_id)
    assert group_records.parse_position(group_records.offset_value(position)) == position


partitions = st.lists(st.tuples(st.sampled_from(["a", "b" * 200, "__c"]), st.integers(0, 2**31 - 1)), unique=True)


@given(
    st.builds(
        TransactionState,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 2**15 - 1),
        timeout_ms=st.integers(0, 2**31 - 1),
        status=st.sampled_from(sorted(set(Status) - {Status.EMPTY})),
        partitions=partitions.map(lambda found: tuple(sorted(found))),
        last_update_ms=st.integers(-1, 2**63 - 1),
        start_ms=st.integers(-1, 2**63 - 1),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
    )
)
def test_a_state_reads_as_it_was_written(state: TransactionState) -> None:
    assert transaction_records.parse_transaction(state.to_bytes()) == state


def test_a_state_without_a_transaction_names_no_partitions() -> None:
    state = TransactionState(7, 1, 60_000, Status.EMPTY, (("t", 0),), 5, 4)
    read = transaction_records.parse_transaction(state.to_bytes())
    assert read == state._replace(partitions=())
    ongoing = state._replace(status=Status.ONGOING, partitions=())
    assert transaction_records.parse_transaction(ongoing.to_bytes()) == ongoing
    assert len(ongoing.to_bytes()) == len(state.to_bytes())  # no array, and an empty one


def test_topics_stay_in_the_order_of_their_addition_with_partitions_together() -> None:
    places = (("b", 2), ("a", 0), ("b", 1))
    read = transaction_records.parse_transaction(TransactionState(7, 1, 60_000, Status.ONGOING, places).to_bytes())
    assert read.partitions == (("b", 2), ("b", 1), ("a", 0))


@pytest.mark.parametrize("count", [0x7E, 0x7F, 0x3FFE, 0x3FFF])
def test_an_array_whose_length_takes_another_byte_is_read_again(count: int) -> None:
    state = TransactionState(7, 1, 60_000, Status.ONGOING, tuple(("t" * 0x7F, n) for n in range(count)))
    assert transaction_records.parse_transaction(state.to_bytes()) == state


def test_what_is_no_state_has_no_value() -> None:
    for other in (None, [*TransactionState(7, 1, 60_000, Status.EMPTY)]):
        with pytest.raises(TypeError, match="is no TransactionState"):
            state_value(other)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        TransactionState(7, 1 << 15, 60_000, Status.EMPTY).to_bytes()


@given(st.binary(max_size=60), st.integers(0, 24))
def test_any_bytes_are_a_record_or_no_record(data: bytes, kind: int) -> None:
    head = struct.pack(">h", kind)
    for parse in (
        group_records.parse_key,
        group_records.parse_position,
        group_records.parse_group,
        transaction_records.parse_transactional_id,
        transaction_records.parse_transaction,
    ):
        for bytes_ in (data, head + data):
            try:
                parse(bytes_)
            except SchemaError:
                continue


def test_members_and_groups_of_the_newer_protocols_are_told_apart() -> None:
    kinds = {type(group_records.parse_key(each.key)) for each in OFFSETS if each.key is not None}
    assert {OffsetKey, GroupKey, MemberKey} <= kinds
