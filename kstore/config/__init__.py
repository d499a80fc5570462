"""Settings under Kafka's names: the tables, their checks, and warnings about dangerous combinations.

Invariant: checks, error messages, `kstore config` and docs/configuration.md all come from one table.
"""

from kstore.config.broker_config import BrokerConfig as BrokerConfig
from kstore.config.keywords import BrokerSettings as BrokerSettings
from kstore.config.keywords import LogSettings as LogSettings
from kstore.config.keywords import StoreSettings as StoreSettings
from kstore.config.log_config import KAFKA_RETENTION_MS as KAFKA_RETENTION_MS
from kstore.config.log_config import LogConfig as LogConfig
from kstore.config.log_config import from_properties as from_properties
from kstore.config.settings import BrokerName as BrokerName
from kstore.config.settings import Setting as Setting
