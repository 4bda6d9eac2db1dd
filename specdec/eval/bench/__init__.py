"""Speed of a loaded engine on this machine: latency, throughput, and what a step over M rows costs."""
