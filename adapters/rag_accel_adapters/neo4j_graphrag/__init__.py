"""What this library understands of neo4j-graphrag objects."""
