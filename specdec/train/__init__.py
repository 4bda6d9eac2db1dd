"""Training of proposers: data, trainees, and the formats that they are written in."""
