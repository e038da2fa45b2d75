"""The leaves of LangChain programs that engines here may run."""

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.owned_search import why_not_searched
from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel_adapters.langchain.models import EMBEDDINGS
from rag_accel_adapters.langchain.proxies import PROXIES

RECOGNISED = RecognisedParts(
    Embeddings,
    EMBEDDINGS,
    PROXIES,
    why_not_searched,
    {
        Embeddings: "RagAccelEmbeddings embeds with a local model",
        VectorStore: "RagAccelVectorStore searches on an engine",
        BaseChatModel: "ChatRagAccel runs a local model, or calls the servers of a RemoteLLM",
    },
)
