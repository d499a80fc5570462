"""The value of a record of `__transaction_state` (FORMAT 12.3), version 1; a transaction writes at least five."""

from kstore.codec.coordinator.transaction_records import TransactionState

def state_value(state: TransactionState) -> bytes:
    """Encode a `TransactionState` as the value of its record."""
