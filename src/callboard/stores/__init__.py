"""Where state lives that outlasts a request: in memory, or shared between processes."""
