from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToFront(_message.Message):
    __slots__ = ("configure", "run", "forward", "refuse", "forget", "health", "drain", "cancel_calls", "disconnect", "ask_health", "alive", "promise", "withdraw", "credentials")
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    REFUSE_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    ASK_HEALTH_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    configure: Configure
    run: Run
    forward: Forward
    refuse: Refuse
    forget: Forget
    health: Health
    drain: Drain
    cancel_calls: CancelCalls
    disconnect: Disconnect
    ask_health: AskHealth
    alive: Alive
    promise: Promise
    withdraw: Withdraw
    credentials: Credentials
    def __init__(self, configure: _Optional[_Union[Configure, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., forward: _Optional[_Union[Forward, _Mapping]] = ..., refuse: _Optional[_Union[Refuse, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., health: _Optional[_Union[Health, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., cancel_calls: _Optional[_Union[CancelCalls, _Mapping]] = ..., disconnect: _Optional[_Union[Disconnect, _Mapping]] = ..., ask_health: _Optional[_Union[AskHealth, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., credentials: _Optional[_Union[Credentials, _Mapping]] = ...) -> None: ...

class FromFront(_message.Message):
    __slots__ = ("ready", "call", "ended", "forwarded", "gone", "load", "unfit", "health_answer", "served")
    READY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    call: Call
    ended: Ended
    forwarded: Forwarded
    gone: Gone
    load: Load
    unfit: Unfit
    health_answer: HealthAnswer
    served: Served
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., forwarded: _Optional[_Union[Forwarded, _Mapping]] = ..., gone: _Optional[_Union[Gone, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., unfit: _Optional[_Union[Unfit, _Mapping]] = ..., health_answer: _Optional[_Union[HealthAnswer, _Mapping]] = ..., served: _Optional[_Union[Served, _Mapping]] = ...) -> None: ...

class Configure(_message.Message):
    __slots__ = ("version", "message_limit", "default_timeout_seconds", "max_parallel", "max_waiting", "max_function_memory", "max_request_memory", "cpus", "standby_max_age_seconds", "standby_idle_seconds", "verbosity", "json_log", "longest_silence_seconds", "sampler", "credentials")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_FUNCTION_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERBOSITY_FIELD_NUMBER: _ClassVar[int]
    JSON_LOG_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SILENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    version: str
    message_limit: int
    default_timeout_seconds: float
    max_parallel: int
    max_waiting: int
    max_function_memory: int
    max_request_memory: int
    cpus: int
    standby_max_age_seconds: float
    standby_idle_seconds: float
    verbosity: int
    json_log: bool
    longest_silence_seconds: float
    sampler: Sampler
    credentials: Credentials
    def __init__(self, version: _Optional[str] = ..., message_limit: _Optional[int] = ..., default_timeout_seconds: _Optional[float] = ..., max_parallel: _Optional[int] = ..., max_waiting: _Optional[int] = ..., max_function_memory: _Optional[int] = ..., max_request_memory: _Optional[int] = ..., cpus: _Optional[int] = ..., standby_max_age_seconds: _Optional[float] = ..., standby_idle_seconds: _Optional[float] = ..., verbosity: _Optional[int] = ..., json_log: _Optional[bool] = ..., longest_silence_seconds: _Optional[float] = ..., sampler: _Optional[_Union[Sampler, _Mapping]] = ..., credentials: _Optional[_Union[Credentials, _Mapping]] = ...) -> None: ...

class Sampler(_message.Message):
    __slots__ = ("follows_caller", "share")
    FOLLOWS_CALLER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    follows_caller: bool
    share: float
    def __init__(self, follows_caller: _Optional[bool] = ..., share: _Optional[float] = ...) -> None: ...

class Credentials(_message.Message):
    __slots__ = ("certificate_chain", "private_key", "client_cas", "token_digests")
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CAS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    certificate_chain: bytes
    private_key: bytes
    client_cas: bytes
    token_digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, certificate_chain: _Optional[bytes] = ..., private_key: _Optional[bytes] = ..., client_cas: _Optional[bytes] = ..., token_digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("trace_id", "span_id", "parent_id", "trace_state", "started_at")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    trace_state: str
    started_at: int
    def __init__(self, trace_id: _Optional[bytes] = ..., span_id: _Optional[bytes] = ..., parent_id: _Optional[bytes] = ..., trace_state: _Optional[str] = ..., started_at: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("version", "problem")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    version: str
    problem: str
    def __init__(self, version: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "image", "message_bytes", "timeout_seconds", "span", "is_promised", "connection", "said_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    IS_PROMISED_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    SAID_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    image: str
    message_bytes: int
    timeout_seconds: float
    span: Span
    is_promised: bool
    connection: int
    said_at: float
    def __init__(self, id: _Optional[int] = ..., image: _Optional[str] = ..., message_bytes: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., is_promised: _Optional[bool] = ..., connection: _Optional[int] = ..., said_at: _Optional[float] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "function", "path", "standby")
    ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    id: int
    function: str
    path: bytes
    standby: int
    def __init__(self, id: _Optional[int] = ..., function: _Optional[str] = ..., path: _Optional[bytes] = ..., standby: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("id", "image", "function", "code", "seconds", "request_bytes", "response_bytes", "queue_seconds", "process", "execution_seconds", "facts", "error", "failed_results", "span")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILED_RESULTS_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    id: int
    image: str
    function: str
    code: str
    seconds: float
    request_bytes: int
    response_bytes: int
    queue_seconds: float
    process: str
    execution_seconds: float
    facts: _containers.ScalarMap[str, str]
    error: str
    failed_results: _containers.RepeatedScalarFieldContainer[str]
    span: Span
    def __init__(self, id: _Optional[int] = ..., image: _Optional[str] = ..., function: _Optional[str] = ..., code: _Optional[str] = ..., seconds: _Optional[float] = ..., request_bytes: _Optional[int] = ..., response_bytes: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., process: _Optional[str] = ..., execution_seconds: _Optional[float] = ..., facts: _Optional[_Mapping[str, str]] = ..., error: _Optional[str] = ..., failed_results: _Optional[_Iterable[str]] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class Forward(_message.Message):
    __slots__ = ("id", "connection", "address", "authority", "timeout_seconds", "headers")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    id: int
    connection: int
    address: str
    authority: str
    timeout_seconds: float
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, id: _Optional[int] = ..., connection: _Optional[int] = ..., address: _Optional[str] = ..., authority: _Optional[str] = ..., timeout_seconds: _Optional[float] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("image", "connection", "address", "authority", "headers", "valid_seconds", "calls", "calls_in_all")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    VALID_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_ALL_FIELD_NUMBER: _ClassVar[int]
    image: str
    connection: int
    address: str
    authority: str
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    valid_seconds: float
    calls: int
    calls_in_all: int
    def __init__(self, image: _Optional[str] = ..., connection: _Optional[int] = ..., address: _Optional[str] = ..., authority: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., valid_seconds: _Optional[float] = ..., calls: _Optional[int] = ..., calls_in_all: _Optional[int] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("connection",)
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    connection: int
    def __init__(self, connection: _Optional[int] = ...) -> None: ...

class Forwarded(_message.Message):
    __slots__ = ("id", "connection", "answered", "status", "trouble")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    connection: int
    answered: Answered
    status: Status
    trouble: Trouble
    def __init__(self, id: _Optional[int] = ..., connection: _Optional[int] = ..., answered: _Optional[_Union[Answered, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., trouble: _Optional[_Union[Trouble, _Mapping]] = ...) -> None: ...

class Served(_message.Message):
    __slots__ = ("image", "connection", "message_bytes", "answered", "span")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    image: str
    connection: int
    message_bytes: int
    answered: Answered
    span: Span
    def __init__(self, image: _Optional[str] = ..., connection: _Optional[int] = ..., message_bytes: _Optional[int] = ..., answered: _Optional[_Union[Answered, _Mapping]] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class AskHealth(_message.Message):
    __slots__ = ("id", "connection", "address", "authority", "timeout_seconds", "headers", "patiently", "service", "hurried")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PATIENTLY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    HURRIED_FIELD_NUMBER: _ClassVar[int]
    id: int
    connection: int
    address: str
    authority: str
    timeout_seconds: float
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    patiently: bool
    service: str
    hurried: bool
    def __init__(self, id: _Optional[int] = ..., connection: _Optional[int] = ..., address: _Optional[str] = ..., authority: _Optional[str] = ..., timeout_seconds: _Optional[float] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., patiently: _Optional[bool] = ..., service: _Optional[str] = ..., hurried: _Optional[bool] = ...) -> None: ...

class HealthAnswer(_message.Message):
    __slots__ = ("id", "response", "status", "trouble")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    status: Status
    trouble: Trouble
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., trouble: _Optional[_Union[Trouble, _Mapping]] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ("response_bytes", "log_bytes", "seconds")
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    response_bytes: int
    log_bytes: int
    seconds: float
    def __init__(self, response_bytes: _Optional[int] = ..., log_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: bytes
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[bytes] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("why", "reached", "is_unnamed")
    WHY_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    IS_UNNAMED_FIELD_NUMBER: _ClassVar[int]
    why: str
    reached: bool
    is_unnamed: bool
    def __init__(self, why: _Optional[str] = ..., reached: _Optional[bool] = ..., is_unnamed: _Optional[bool] = ...) -> None: ...

class Refuse(_message.Message):
    __slots__ = ("id", "code", "message", "details")
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    id: int
    code: int
    message: str
    details: bytes
    def __init__(self, id: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[bytes] = ...) -> None: ...

class Gone(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("standby",)
    class StandbyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    standby: _containers.ScalarMap[str, int]
    def __init__(self, standby: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("serving", "end_standby")
    SERVING_FIELD_NUMBER: _ClassVar[int]
    END_STANDBY_FIELD_NUMBER: _ClassVar[int]
    serving: bool
    end_standby: bool
    def __init__(self, serving: _Optional[bool] = ..., end_standby: _Optional[bool] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelCalls(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Disconnect(_message.Message):
    __slots__ = ("connection",)
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    connection: int
    def __init__(self, connection: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "waiting", "memory", "standby", "calls", "under_way")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    memory: int
    standby: _containers.RepeatedCompositeFieldContainer[StandbyLoad]
    calls: int
    under_way: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., memory: _Optional[int] = ..., standby: _Optional[_Iterable[_Union[StandbyLoad, _Mapping]]] = ..., calls: _Optional[int] = ..., under_way: _Optional[int] = ...) -> None: ...

class Unfit(_message.Message):
    __slots__ = ("function", "why")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    function: str
    why: str
    def __init__(self, function: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class StandbyLoad(_message.Message):
    __slots__ = ("function", "processes", "memory")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    function: str
    processes: int
    memory: int
    def __init__(self, function: _Optional[str] = ..., processes: _Optional[int] = ..., memory: _Optional[int] = ...) -> None: ...
