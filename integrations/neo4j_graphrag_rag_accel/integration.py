"""The integration of neo4j-graphrag."""

from rag_accel.interception.integration import Integration

INTEGRATION = Integration(
    name="neo4j-graphrag",
    package="neo4j_graphrag_rag_accel",
    module="neo4j_graphrag",
    distribution="neo4j-graphrag",
    extra="neo4j-graphrag",
    acceleration="neo4j_graphrag_rag_accel.accelerate:ACCELERATION",
    roots=("neo4j_graphrag",),
)
