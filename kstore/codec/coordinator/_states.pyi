"""Encodes transaction states (FORMAT 12.3, version 1); compiled, since each transaction writes at least five."""

from kstore.codec.coordinator.transaction_records import TransactionState

def state_value(state: TransactionState) -> bytes:
    """Encode a `TransactionState` as the value of its record."""
