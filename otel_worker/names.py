"""Every name that leaves the process: spans, attributes, activities, metrics. Imports nothing."""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
SCOPE = "otel_worker"

# --- spans ---------------------------------------------------------------------------------------------------------
# A name is an operation, for four of them followed by a task prefix; never by a key.

COMPUTE = "compute"  # + prefix of the wanted keys
SUBMIT = "submit"
TASK = "task"  # + prefix
WAITING = "waiting"
READY = "ready"
EXECUTE = "execute"
RUN = "run"
FETCH = "fetch"  # + prefix of the dependent
FETCH_QUEUED = "fetch.queued"
CONNECT = "connect"
CONNECT_POOL = "connect.pool"
CONNECT_DIAL = "connect.dial"
CONNECT_HANDSHAKE = "connect.handshake"
REQUEST = "request"
FETCH_DESERIALIZE = "fetch.deserialize"
GET_DATA = "get_data"
GET_DATA_SERIALIZE = "get_data.serialize"
GET_DATA_SEND = "get_data.send"
GATHER = "gather"  # the scheduler makes this worker fetch: replicate, rebalance
SPILL = "spill"
SPILL_SERIALIZE = "spill.serialize"
SPILL_WRITE = "spill.write"
UNSPILL = "unspill"
UNSPILL_READ = "unspill.read"
UNSPILL_DESERIALIZE = "unspill.deserialize"
TASKS = "tasks"  # + prefix; one span that stands for many tasks
LOOP_BLOCKED = "event_loop.blocked"
TASK_STUCK = "task.stuck"  # the name of its one event, too
# P2P shuffles and rechunks; the first three in a task's `run`
SHUFFLE_TRANSFER = "shuffle.transfer"
SHUFFLE_BARRIER = "shuffle.barrier"
SHUFFLE_UNPACK = "shuffle.unpack"
SHUFFLE_SEND = "shuffle.send"
SHUFFLE_RECEIVE = "shuffle_receive"
SHUFFLE_WRITE = "shuffle.write"
SHUFFLE_FLUSH = "shuffle.flush"
ACTOR = "actor"  # + prefix.method: SERVER where the actor lives, CLIENT where it is called

# --- attributes ----------------------------------------------------------------------------------------------------

TASK_KEY = "dask.task.key"
TASK_PREFIX = "dask.task.prefix"
TASK_GROUP = "dask.task.group"
TASK_RUN_ID = "dask.task.run_id"
TASK_NBYTES = "dask.task.nbytes"
TASK_DEPENDENCIES = "dask.task.dependencies"
TASK_ACTOR = "dask.task.actor"  # True: its value is an actor
TASK_WAITED = "dask.task.waited"  # False: all its data was here when it arrived
WORKER_ADDRESS = "dask.worker.address"
WORKER_NAME = "dask.worker.name"
PEER_ADDRESS = "dask.peer.address"
PEER_KIND = "dask.peer.kind"  # worker | client | scheduler | unknown
PEER_INSTRUMENTED = "dask.peer.instrumented"
OUTCOME = "dask.outcome"
COMPUTATION = "dask.computation"  # span id of the `compute` span, 16 hex digits

COMPUTE_KEYS = "dask.compute.keys"

FETCH_KEYS = "dask.fetch.keys"
FETCH_KEY_COUNT = "dask.fetch.key_count"
FETCH_NBYTES = "dask.fetch.nbytes"
FETCH_REASON = "dask.fetch.reason"  # dependency | replica | replicate_or_rebalance
REASON_GATHER = "replicate_or_rebalance"  # Dask does not tell the worker which of the two
REPLICA = "replica"  # stands for the prefix where no task waits
FETCH_DEPENDENTS = "dask.fetch.dependents"  # keys, capped
FETCH_DEPENDENT_COUNT = "dask.fetch.dependent_count"
FETCH_QUEUED_MIN = "dask.fetch.queued.min"  # seconds, over the keys of the request
FETCH_QUEUED_MEAN = "dask.fetch.queued.mean"
FETCH_QUEUED_MAX = "dask.fetch.queued.max"
FETCH_BUNDLE_END = "dask.fetch.bundle_end"  # all_keys | bytes: what ended the list of keys of this request
FETCH_PEERS_BUSY = "dask.fetch.peers_busy"  # peers with keys that are wanted, skipped since they were busy
FETCH_PEERS_IN_FLIGHT = "dask.fetch.peers_in_flight"  # as above, since they had a request already
FETCH_TIME_PREFIX = "dask.fetch.time."  # + activity, seconds
FETCH_MISSING_KEYS = "dask.fetch.missing_keys"
CONNECT_REUSED = "dask.connect.reused"
CONNECT_ATTEMPTS = "dask.connect.attempts"

# The split of a request, seconds.
REQUEST_FIRST_BYTE = "dask.request.first_byte"  # sent -> first byte of the reply, local clock
REQUEST_BODY = "dask.request.body"  # first byte -> last byte, local clock
REQUEST_LOCAL_LOOP = "dask.request.local_loop"
REQUEST_PEER_LOOP = "dask.request.peer_loop"
REQUEST_PEER_UNSPILL = "dask.request.peer_unspill"
REQUEST_PEER_SPILL = "dask.request.peer_spill"
REQUEST_PEER_SERIALIZE = "dask.request.peer_serialize"
REQUEST_NETWORK = "dask.request.network"  # what nothing else explains

GET_DATA_ACK = "dask.get_data.ack_wait"  # seconds from the reply to the requester's OK
OFFLOAD_QUEUE = "dask.offload.queue"  # seconds in the queue of the one offload thread
LOOP_DELAY = "dask.event_loop.delay"  # seconds
LOOP_CAUSE = "dask.event_loop.cause"  # what the event loop did, or which task ran, while it did not come round
LOOP_BLOCKED_BY = "dask.event_loop.blocked_by"  # the key to blame, where it is known

READY_PREFIX = "dask.ready."  # + thread_slot | paused | resources, seconds
WAIT_PREFIX = "dask.wait."  # + activity, seconds
EXECUTE_PREFIX = "dask.execute."  # + activity, seconds
ARRIVAL = "dask.task.arrival"  # seconds, this task's share of decoding the batch that it came in

RUN_THREAD_CPU = "dask.run.thread_cpu"  # seconds, of functions that have a thread to themselves
RUN_THREAD_NONCPU = "dask.run.thread_noncpu"  # seconds, wall minus CPU
RUN_KIND = "dask.run.kind"  # thread | async_task | process
RUN_SECEDED = "dask.run.seceded"  # seconds from secede() until it had rejoined, or to the end
RUN_REJOINING = "dask.run.rejoining"  # of them, seconds of waiting for a slot to rejoin
EXECUTOR = "dask.executor"
EXECUTOR_QUEUE = "dask.executor.queue"  # seconds

SPILL_KEY = "dask.spill.key"  # evicted or read back
SPILL_TRIGGER_KEY = "dask.spill.trigger_key"
SPILL_CAUSE = "dask.spill.cause"  # store | load | run | get_data | monitor
SPILL_NBYTES = "dask.spill.nbytes"  # on disk

SHUFFLE_ID = "dask.shuffle.id"
SHUFFLE_RUN_ID = "dask.shuffle.run_id"
SHUFFLE_PARTITION = "dask.shuffle.partition"  # index of the partition that goes in or comes out
SHUFFLE_PARTITIONS = "dask.shuffle.partitions"  # how many partitions the shards of this batch come from
SHUFFLE_NBYTES = "dask.shuffle.nbytes"
SHUFFLE_TIME_PREFIX = "dask.shuffle.time."  # + activity, seconds

ACTOR_METHOD = "dask.actor.method"  # of an actor, or its attribute
ACTOR_TIME_PREFIX = "dask.actor.time."  # + executor_queue | run.cpu | run.noncpu | loop, seconds

STUCK_STATE = "dask.stuck.state"  # what a stuck task does, as `otel-worker open` says it
STUCK_PHASE = "dask.stuck.phase"

TASKS_COUNT = "dask.tasks.count"
TASKS_MIN = "dask.tasks.min"  # seconds of the quickest, without `ready`
TASKS_MAX = "dask.tasks.max"  # seconds of the slowest, whose key is `dask.task.key`
TASKS_OUTCOMES = "dask.tasks.outcomes"  # as "memory: 12"
TASKS_ERRORS = "dask.tasks.errors"  # as "ValueError: 3"

# OpenTelemetry's semantic conventions.
ERROR_TYPE = "error.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_STACKTRACE = "exception.stacktrace"
CODE_FUNCTION = "code.function.name"
CODE_FILE = "code.file.path"
CODE_LINE = "code.line.number"
NETWORK_PEER_ADDRESS = "network.peer.address"
NETWORK_PEER_PORT = "network.peer.port"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
THREAD_ID = "thread.id"
THREAD_NAME = "thread.name"

# --- activities: what a task's time is split into ----------------------------------------------------------------------

# while a key is not yet requested
MISSING = "missing"
QUEUED_COUNT = "queued.count"
QUEUED_BYTES = "queued.bytes"
QUEUED_HEAD_OF_LINE = "queued.head_of_line"
QUEUED_BUSY = "queued.busy"
QUEUED_IN_FLIGHT = "queued.in_flight"
QUEUED_PAUSED = "queued.paused"
# while a task could start
READY_THREAD_SLOT = "thread_slot"
READY_PAUSED = "paused"
READY_RESOURCES = "resources"
# in a fetch
FETCH_CONNECT_POOL = "connect.pool"
FETCH_CONNECT_DIAL = "connect.dial"
FETCH_CONNECT_HANDSHAKE = "connect.handshake"
PEER_LOOP = "peer.loop"
PEER_UNSPILL = "peer.unspill"
PEER_SPILL = "peer.spill"
PEER_SERIALIZE = "peer.serialize"
NETWORK = "network"
LOOP = "loop"
DESERIALIZE_QUEUE = "deserialize.queue"
DESERIALIZE = "deserialize"
STORE = "store"
STORE_SPILL = "store.spill"
# in an execution, besides LOOP and STORE_SPILL
LOAD = "load"
LOAD_UNSPILL = "load.unspill"
LOAD_SPILL = "load.spill"
RUN_QUEUE = "executor_queue"
RUN_CPU = "run.cpu"
RUN_NONCPU = "run.noncpu"
RUN_PROCESS = "run.process"  # in a process of a pool: where no hook is
RUN_REJOIN = "run.rejoin"  # its thread had left the pool and waits for a slot to rejoin it
RUN_SHUFFLE = "run.shuffle"  # + one of SHUFFLE_WAITS
# in a shuffle, besides LOOP: what Dask meters, by its own labels (shard_partition_cpu, get_output_cpu, send, disk_write, …), and
SHUFFLE_JOIN = "join"  # learning of the run from the scheduler
SHUFFLE_LIMITER = "comms_limiter"  # Dask's label: the buffer of what is to be sent is full
SHUFFLE_INPUTS_DONE = "inputs_done"  # every worker flushes what it has still to send
SHUFFLE_FLUSH_DISK = "flush"  # this worker flushes what it has still to write to disk
SHUFFLE_WAITS = (SHUFFLE_JOIN, SHUFFLE_LIMITER, SHUFFLE_INPUTS_DONE, SHUFFLE_FLUSH_DISK, LOOP)
# in a served request, besides UNSPILL and SPILL
SERIALIZE_QUEUE = "serialize.queue"
SERIALIZE = "serialize"
SEND = "send"
ACK = "ack"  # the reply is written, and the requester has not said that it came
OTHER = "other"

# --- service names -------------------------------------------------------------------------------------------------

SERVICE_WORKER = "dask-worker"
SERVICE_CLIENT = "dask-client"
SERVICE_SCHEDULER = "dask-scheduler"

STATE = "dask.task.state"
ACTIVITY = "dask.activity"

# --- what a worker answers to who asks it ---------------------------------------------------------------------------

OPERATION = "otel_worker"  # Dask's `op`

# --- the environment between `otel-worker run --record` and its workers ---------------------------------------------

RUN_VARIABLE = "OTEL_WORKER_RUN"  # the file in which each client of a program writes its scheduler's address
RECORD_VARIABLE = "OTEL_WORKER_RECORD"  # the folder in which each worker writes what it was told

# --- metrics -------------------------------------------------------------------------------------------------------

METRIC_STATE_TIME = "dask.task.state.time"
METRIC_STATE_ENTERED = "dask.task.state.entered"
METRIC_WAIT_TIME = "dask.task.wait.time"
METRIC_EXECUTE_TIME = "dask.task.execute.time"
METRIC_ARRIVAL_TIME = "dask.task.arrival.time"
METRIC_FETCH_TIME = "dask.fetch.time"
METRIC_FETCH_DURATION = "dask.fetch.duration"
METRIC_FETCH_IO = "dask.fetch.io"
METRIC_GET_DATA_TIME = "dask.get_data.time"
METRIC_SPILL_TIME = "dask.spill.time"
METRIC_SPILL_IO = "dask.spill.io"
METRIC_SPILL_OPERATIONS = "dask.spill.operations"
METRIC_SHUFFLE_TIME = "dask.shuffle.time"
METRIC_SHUFFLE_IO = "dask.shuffle.io"
METRIC_ACTOR_TIME = "dask.actor.time"
METRIC_ACTOR_CALLS = "dask.actor.calls"
METRIC_LOOP_LAG = "dask.event_loop.lag"
METRIC_TASK_OLDEST = "dask.task.oldest"
METRIC_SPANS = "otel_worker.spans"
