"""kstore: Kafka's commit log inside a Python process."""

from kstore._columnread import decode_columns as decode_columns
from kstore._columns import Columns as Columns
from kstore._consume import ConsumerRecord as ConsumerRecord
from kstore._core import Record as Record
from kstore._core import RecordBatch as RecordBatch
from kstore._core import decode_batches as decode_batches
from kstore._pack import encode_batch as encode_batch
from kstore.appends import AppendInfo as AppendInfo
from kstore.config import LogConfig as LogConfig
from kstore.consumer import Consumer as Consumer
from kstore.errors import *  # noqa: F403
from kstore.groups import CommittedOffset as CommittedOffset
from kstore.log import Log as Log
from kstore.producers import Producer as Producer
from kstore.producers import Transaction as Transaction
from kstore.producers import TransactionalProducer as TransactionalProducer
from kstore.reading import FetchResult as FetchResult
from kstore.reads import TimestampOffset as TimestampOffset
from kstore.segment import SegmentInfo as SegmentInfo
from kstore.store import Store as Store
from kstore.topicwrites import RecordMetadata as RecordMetadata
