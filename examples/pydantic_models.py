"""Pydantic models as arguments and results: one pydantic annotation, and pydantic does the whole tool."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field, computed_field, field_validator

from callboard import Client, Server

server = Server("invoices", version="1.0.0")


class Line(BaseModel):
    name: str
    price: float = Field(gt=0, description="Of one piece.")
    amount: int = 1


class Invoice(BaseModel):
    number: str = Field(alias="invoiceNumber", pattern=r"^\d{4}-\d+$")
    lines: list[Line] = Field(min_length=1)

    @field_validator("lines")
    @classmethod
    def check_names(cls, lines: list[Line]) -> list[Line]:
        if len({line.name for line in lines}) < len(lines):
            raise ValueError("two lines have the same name")
        return lines

    @computed_field  # type: ignore[prop-decorator] # mypy knows no decorated properties (python/mypy#1362)
    @property
    def total(self) -> float:
        return sum(line.price * line.amount for line in self.lines)


@server.tool
async def reduce(invoice: Invoice, percent: Annotated[float, Field(ge=0, le=100, description="How much to take off.")] = 10) -> Invoice:
    """Reduce every price of an invoice."""
    lines = [line.model_copy(update={"price": line.price * (1 - percent / 100)}) for line in invoice.lines]
    return invoice.model_copy(update={"lines": lines})


async def main() -> None:
    async with Client(server) as client:
        (tool,) = await client.list_tools()
        percent = tool.input_schema["properties"]["percent"]
        assert (percent["minimum"], percent["maximum"], percent["default"]) == (0, 100, 10)
        assert isinstance(tool.output_schema, dict)
        assert "total" in tool.output_schema["required"], "outputs are described as they are serialized"

        lines = [{"name": "lamp", "price": 20}, {"name": "bulb", "price": 2, "amount": 5}]
        done = await client.call_tool("reduce", {"invoice": {"invoiceNumber": "2026-7", "lines": lines}, "percent": 50})
        assert done.structured_content == {
            "invoiceNumber": "2026-7",
            "lines": [{"name": "lamp", "price": 10, "amount": 1}, {"name": "bulb", "price": 1, "amount": 5}],
            "total": 15,
        }

        wrong = await client.call_tool("reduce", {"invoice": {"invoiceNumber": "7", "lines": [{"name": "lamp", "price": 0}]}})
        assert wrong.is_error
        (answer,) = wrong.content
        assert "invoiceNumber" in str(answer)
        assert "price" in str(answer)

        # What only Python can check is answered in the same way.
        wrong = await client.call_tool("reduce", {"invoice": {"invoiceNumber": "2026-7", "lines": [lines[0], lines[0]]}})
        assert wrong.is_error
        assert "two lines have the same name" in str(wrong.content[0])
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
