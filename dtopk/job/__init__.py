"""Jobs: what a job file says, and the training that it asks for."""
