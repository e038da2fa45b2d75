"""The integration of LangChain and LangGraph."""

from rag_accel.interception.integration import Integration

_MODEL = ("_generate", "_agenerate", "_stream", "_astream")

INTEGRATION = Integration(
    name="LangChain",
    package="langchain_rag_accel",
    module="langchain_core",
    distribution="langchain-core",
    extra="langchain",
    acceleration="langchain_rag_accel.accelerate:ACCELERATION",
    roots=("langchain_core", "langgraph"),
    required={
        "langchain_core.language_models.BaseChatModel": _MODEL,
        "langchain_core.language_models.BaseLLM": _MODEL,
        "langchain_core.retrievers.BaseRetriever": (
            "_get_relevant_documents",
            "_aget_relevant_documents",
        ),
    },
    components={
        "ChatRagAccel": "components.local_chat",
        "RagAccelEmbeddings": "components.embeddings",
        "RagAccelGraphRetriever": "components.retrievers",
        "RagAccelRetriever": "components.retrievers",
        "RagAccelVectorStore": "components.vectorstores",
    },
    tokens="langchain_rag_accel.token_counts:counted_tokens",
)
