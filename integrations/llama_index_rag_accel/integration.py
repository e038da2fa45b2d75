"""The integration of LlamaIndex."""

from rag_accel.interception.integration import Integration

INTEGRATION = Integration(
    name="LlamaIndex",
    package="llama_index_rag_accel",
    module="llama_index.core",
    distribution="llama-index-core",
    extra="llama-index",
    acceleration="llama_index_rag_accel.accelerate:ACCELERATION",
    roots=("llama_index", "workflows"),
    components={
        "RagAccelEmbedding": "components.embeddings",
        "RagAccelGraphRetriever": "components.retrievers",
        "RagAccelLLM": "components.llms",
        "RagAccelRetriever": "components.retrievers",
        "RagAccelVectorStore": "components.vector_stores",
    },
    tokens="llama_index_rag_accel.token_counts:counted_tokens",
)
