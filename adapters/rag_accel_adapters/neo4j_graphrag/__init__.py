"""The parts of neo4j-graphrag objects."""
