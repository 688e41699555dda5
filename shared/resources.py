"""What a run used beside its time: CPU, memory, bytes and GPU of every node, sampled once a second into a CSV."""

RESOURCES_NAME = "resources.csv"
COLUMNS = (
    "at_ns", "node", "pid", "cpu_percent", "rss_bytes", "bytes_in", "bytes_out",
    "gpu_percent", "gpu_memory_bytes", "gpu_power_w",
)  # fmt: skip
