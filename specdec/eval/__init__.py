"""What is measured and checked on whole engines: losslessness against plain decoding of the same engine."""
