"""Native code of the device, as LLVM text: what C++ calls without Python.

The guard keeps a device and a stream per thread, creates streams and events, and logs what happens
to them. The deleter of tensors runs in any thread, even while a Python exception is raised, so it
only counts bytes and notes an address. A writer first reserves an entry of a list and fills it
last; readers stop at an entry that is still empty, and clear what they have read.
"""

LOG_ENTRIES = 65_536
"""Entries of the log of streams and events; it is read before it is full."""
LOG_FIELDS = 4
"""Kind, event or device, stream (device above bit 32), thread."""
RING_ENTRIES = 1_048_576
"""Freed tensors that can be pending."""
MOST_DEVICES = 64
"""Devices whose freed bytes are counted."""

GUARD_SLOTS = (
    "type", "exchange_device", "get_device", "set_device", "set_device",
    "current_stream", "default_stream", "pool_stream", "new_stream", "exchange_stream",
    "native_handle", "destroy_event", "record", "block", "yes", "count", "capability",
    "yes", "sync_stream", "no", "sync_event", "sync_device", "record_pointer", "elapsed",
    "nothing", "nothing",
)  # fmt: skip
"""The virtual functions of c10::impl::DeviceGuardImplInterface in torch 2.13, in order."""

HOOK_SLOTS = {
    2: "yes", 3: "yes", 4: "yes", 5: "nothing", 6: "count", 7: "nothing", 8: "current_index",
    9: "same", 10: "same", 11: "yes", 13: "get_device", 16: "yes", 17: "yes",
    26: "current_index", 46: "count_wide", 50: "nothing",
}  # fmt: skip
"""Virtual functions of at::CUDAHooksInterface in torch 2.13 that are replaced by ours."""

TORCH_HOOKS = {
    12: ("libc10.so", "_ZN3c1015GetCPUAllocatorEv"),
    14: ("libtorch_cpu.so", "_ZN2at6detail22getDefaultCPUGeneratorEv"),
    15: ("libtorch_cpu.so", "_ZN2at6detail18createCPUGeneratorEm"),
}
"""Those that become functions of torch itself: pinned allocator, default and new generator."""

CODE = r"""
@devices = global i8 1
@streams = global i64 32
@events = global i64 0
@log_count = global i64 0
@log = global [65536 x [4 x i64]] zeroinitializer
@states = global [1024 x [3 x i64]] zeroinitializer
@freed_bytes = global [64 x i64] zeroinitializer
@freed_count = global i64 0
@freed = global [1048576 x i64] zeroinitializer

declare i64 @pthread_self()

; The entry of this thread: its id, its device as c10 packs it, its stream.
define ptr @state() {
begin:
  %self = call i64 @pthread_self()
  %first = lshr i64 %self, 12
  br label %probe
probe:
  %place = phi i64 [%first, %begin], [%next, %step], [%place, %take]
  %row = and i64 %place, 1023
  %entry = getelementptr [1024 x [3 x i64]], ptr @states, i64 0, i64 %row, i64 0
  %owner = load atomic i64, ptr %entry seq_cst, align 8
  %is_mine = icmp eq i64 %owner, %self
  br i1 %is_mine, label %found, label %other
other:
  %is_free = icmp eq i64 %owner, 0
  br i1 %is_free, label %take, label %step
step:
  %next = add i64 %place, 1
  br label %probe
take:
  %swap = cmpxchg ptr %entry, i64 0, i64 %self seq_cst seq_cst
  %is_taken = extractvalue {i64, i1} %swap, 1
  br i1 %is_taken, label %fresh, label %probe
fresh:
  %device = getelementptr i64, ptr %entry, i64 1
  store i64 1, ptr %device
  br label %found
found:
  ret ptr %entry
}

define i16 @device() {
  %state = call ptr @state()
  %place = getelementptr i64, ptr %state, i64 1
  %wide = load i64, ptr %place
  %device = trunc i64 %wide to i16
  ret i16 %device
}

define void @write(i64 %kind, i64 %what, ptr %stream) {
  %number = atomicrmw add ptr @log_count, i64 1 seq_cst
  %row = and i64 %number, 65535
  %p = getelementptr [65536 x [4 x i64]], ptr @log, i64 0, i64 %row, i64 0
  %p1 = getelementptr i64, ptr %p, i64 1
  store i64 %what, ptr %p1
  %p2 = getelementptr i64, ptr %p, i64 2
  %is_none = icmp eq ptr %stream, null
  br i1 %is_none, label %none, label %some
some:
  %device_place = getelementptr i8, ptr %stream, i64 1
  %index8 = load i8, ptr %device_place
  %index = zext i8 %index8 to i64
  %shifted = shl i64 %index, 32
  %id_place = getelementptr i64, ptr %stream, i64 1
  %id = load i64, ptr %id_place
  %packed = or i64 %id, %shifted
  store i64 %packed, ptr %p2
  br label %rest
none:
  store i64 -1, ptr %p2
  br label %rest
rest:
  %p3 = getelementptr i64, ptr %p, i64 3
  %self = call i64 @pthread_self()
  store i64 %self, ptr %p3
  store atomic i64 %kind, ptr %p release, align 8
  ret void
}

define i8 @type(ptr %this) { ret i8 1 }
define i16 @get_device(ptr %this) {
  %device = call i16 @device()
  ret i16 %device
}
define void @set_device(ptr %this, i16 %device) {
  %index = lshr i16 %device, 8
  %is_any = icmp eq i16 %index, 255
  br i1 %is_any, label %end, label %store
store:
  %state = call ptr @state()
  %place = getelementptr i64, ptr %state, i64 1
  %wide = zext i16 %device to i64
  store i64 %wide, ptr %place
  br label %end
end:
  ret void
}
define i16 @exchange_device(ptr %this, i16 %device) {
  %old = call i16 @device()
  call void @set_device(ptr %this, i16 %device)
  ret i16 %old
}
define {i64, i64} @make_stream(i16 %device, i64 %id) {
  %index = lshr i16 %device, 8
  %is_any = icmp eq i16 %index, 255
  %current = call i16 @device()
  %chosen = select i1 %is_any, i16 %current, i16 %device
  %wide = zext i16 %chosen to i64
  %half = insertvalue {i64, i64} undef, i64 %wide, 0
  %whole = insertvalue {i64, i64} %half, i64 %id, 1
  ret {i64, i64} %whole
}
define {i64, i64} @current_stream(ptr %this, i16 %device) {
  %state = call ptr @state()
  %place = getelementptr i64, ptr %state, i64 2
  %id = load i64, ptr %place
  %stream = call {i64, i64} @make_stream(i16 %device, i64 %id)
  ret {i64, i64} %stream
}
define {i64, i64} @default_stream(ptr %this, i16 %device) {
  %stream = call {i64, i64} @make_stream(i16 %device, i64 0)
  ret {i64, i64} %stream
}
define {i64, i64} @pool_stream(ptr %this, i16 %device, i1 %is_high) {
  %number = atomicrmw add ptr @streams, i64 1 seq_cst
  %stream = call {i64, i64} @make_stream(i16 %device, i64 %number)
  ret {i64, i64} %stream
}
define {i64, i64} @new_stream(ptr %this, i16 %device, i32 %priority) {
  %stream = call {i64, i64} @pool_stream(ptr %this, i16 %device, i1 0)
  ret {i64, i64} %stream
}
define {i64, i64} @exchange_stream(ptr %this, i64 %device, i64 %id) {
  %state = call ptr @state()
  %place = getelementptr i64, ptr %state, i64 2
  %old = load i64, ptr %place
  store i64 %id, ptr %place
  %narrow = trunc i64 %device to i16
  %stream = call {i64, i64} @make_stream(i16 %narrow, i64 %old)
  ret {i64, i64} %stream
}
define ptr @native_handle(ptr %this, i64 %device, i64 %id) {
  %handle = inttoptr i64 %id to ptr
  ret ptr %handle
}
define void @destroy_event(ptr %this, ptr %event, i8 %device) { ret void }
define void @record(ptr %this, ptr %event, ptr %stream, i8 %device, i32 %flag) {
  %before = atomicrmw add ptr @events, i64 1 seq_cst
  %number = add i64 %before, 1
  store i64 %number, ptr %event
  call void @write(i64 1, i64 %number, ptr %stream)
  ret void
}
define void @block(ptr %this, ptr %event, ptr %stream) {
  %number = ptrtoint ptr %event to i64
  call void @write(i64 2, i64 %number, ptr %stream)
  ret void
}
define void @sync_stream(ptr %this, ptr %stream) {
  call void @write(i64 3, i64 0, ptr %stream)
  ret void
}
define void @sync_event(ptr %this, ptr %event) {
  %number = ptrtoint ptr %event to i64
  call void @write(i64 4, i64 %number, ptr null)
  ret void
}
define void @sync_device(ptr %this, i8 %device) {
  %index = zext i8 %device to i64
  call void @write(i64 5, i64 %index, ptr null)
  ret void
}
define void @record_pointer(ptr %this, ptr %data, ptr %stream) { ret void }
define i1 @yes(ptr %this, ptr %other) { ret i1 1 }
define i1 @no(ptr %this, ptr %other) { ret i1 0 }
define i8 @count(ptr %this) {
  %count = load i8, ptr @devices
  ret i8 %count
}
define i32 @count_wide(ptr %this) {
  %count = load i8, ptr @devices
  %wide = zext i8 %count to i32
  ret i32 %wide
}
define i64 @capability(ptr %this, i16 %device) { ret i64 -1 }
define double @elapsed(ptr %this, ptr %from, ptr %to, i8 %device) { ret double 1.0 }
define void @nothing(ptr %this) { ret void }
define i8 @current_index(ptr %this) {
  %device = call i16 @device()
  %index = lshr i16 %device, 8
  %narrow = trunc i16 %index to i8
  ret i8 %narrow
}
define i8 @same(ptr %this, i8 %index) { ret i8 %index }

; manager_ctx, the seventh word of a DLManagedTensor, holds bytes and, above them, the device.
define void @delete_tensor(ptr %tensor) {
  %place = getelementptr i64, ptr %tensor, i64 6
  %packed = load i64, ptr %place
  %bytes = and i64 %packed, 72057594037927935
  %device = lshr i64 %packed, 56
  %counter = getelementptr [64 x i64], ptr @freed_bytes, i64 0, i64 %device
  %old = atomicrmw add ptr %counter, i64 %bytes seq_cst
  %number = atomicrmw add ptr @freed_count, i64 1 seq_cst
  %row = and i64 %number, 1048575
  %entry = getelementptr [1048576 x i64], ptr @freed, i64 0, i64 %row
  %address = ptrtoint ptr %tensor to i64
  store atomic i64 %address, ptr %entry release, align 8
  ret void
}
"""
